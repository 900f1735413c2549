"""One rank of a training job on CPUs, for test_gloo: trains a tiny drafter in several ways, rank 0 keeps the results.

Started as `python ranks.py FOLDER RANK SIZE`; a file in FOLDER is the meeting point.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "drafter"))

import torch
import torch.distributed as dist

from eyas.drafter.distributed import World, joined, leave, whole
from eyas.drafter.optimizer import Optimizer
from eyas.drafter.options import TrainOptions
from eyas.drafter.trainer import Trainer
from tiny import memory_store, tiny_drafter, tiny_teacher

BASE = TrainOptions(
    ttt_steps=2, epochs=4, tokens_per_step=30, warmup_steps=3, threads=1, train_head=True, tracker="none",
    learning_rate=1e-2, checkpoint_seconds=1e9, checkpoint_steps=10**6, keep_last=9,
)  # fmt: skip
STEPS = 20

WAYS = {
    "float64": ({}, torch.float64, "ddp"),
    "float64 in parts": ({"tokens_per_forward": 9}, torch.float64, "ddp"),
    "float64 one row a step": ({"tokens_per_step": 1}, torch.float64, "ddp"),
    "float64 sharded": ({}, torch.float64, "fsdp"),
    "float64 sharded in parts": ({"tokens_per_forward": 9}, torch.float64, "fsdp"),
    "float32": ({}, torch.float32, "ddp"),
    "float32 sharded": ({}, torch.float32, "fsdp"),
    "muon": ({"optimizer": "muon"}, torch.float32, "ddp"),
    "muon sharded": ({"optimizer": "muon"}, torch.float32, "fsdp"),
}


RESUMED = ("float64", "float64 sharded")


class Enough(BaseException):
    pass


def train(folder: Path, world: World, way: str, stop_at: int | None = None) -> Trainer:
    """Train to STEPS steps; stop_at: save a checkpoint there and end. Rank 0 writes weights and first gradients."""
    changes, dtype, parallel = WAYS[way]
    options = dataclasses.replace(BASE, **changes, parallel=parallel)
    drafter = tiny_drafter(0, dtype)
    drafter.embed_tokens.weight.requires_grad_(False)
    teacher, head = tiny_teacher(drafter)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(drafter, memory_store(head), teacher, options, folder, world=world, run_name="one")
    gradients: dict[str, torch.Tensor] = {}
    clip = Optimizer.clip

    def kept(self: Optimizer) -> float:
        if not gradients:
            gradients.update({name: whole(p.grad).clone() for name, p in self._named})
        return clip(self)

    step = Trainer._step

    def counted(self: Trainer, *args: object) -> dict:
        if self.position.step == (stop_at or STEPS):
            self._save()
            raise Enough
        return step(self, *args)

    Optimizer.clip, Trainer._step = kept, counted
    try:
        trainer.run()
    except Enough:
        pass
    finally:
        Optimizer.clip, Trainer._step = clip, step
    weights = {name: p.detach().clone() for name, p in trainer.parallel.plain().named_parameters()}
    if world.leads:
        torch.save({"weights": weights, "gradients": gradients}, folder / "result.pt")
    return trainer


def train_all(folder: Path, world: World) -> None:
    """Every way to the end, two of them half the way, and on from the halves of the other number of ranks."""
    here = folder / str(world.size)
    for way in WAYS:
        train(here / way, world, way)
    for way in RESUMED:
        train(here / f"half of {way}", world, way, stop_at=STEPS // 2)
        half = folder / "1" / f"half of {way}"
        if world.size > 1:
            if world.leads:
                shutil.copytree(half, here / f"on from one of {way}")
            world.wait()
            train(here / f"on from one of {way}", world, way)


def main(folder: Path, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    with joined() as world:
        assert (world.rank, world.size) == (rank, size)
        train_all(folder, world)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
