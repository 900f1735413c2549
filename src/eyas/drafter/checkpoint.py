"""Checkpoints `step-000123/`: weights, optimiser state, and a state file that completes them.

The optimiser's state is one file for each rank that holds a part of it: shards along the first dimension, in
the order of the ranks, so that any number of processes can put them together again. `state.json` is written
last, atomically, and holds size and digest of the other files. A folder without it, or whose files differ
from it, is passed over with its reason and never deleted here.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from eyas.core.digest import read_digest
from eyas.core.errors import EyasError
from eyas.core.files import write_whole
from eyas.core.manifest import FORMAT, read_json

from .config import DrafterConfig
from .distributed import World
from .network import Drafter

STATE = "state.json"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"


@dataclass(frozen=True)
class Position:
    """Where a run stands: steps done, the epoch it is in and the rows of that epoch already consumed.

    skipped: steps without a term, for which the optimiser did nothing.
    """

    step: int = 0
    epoch: int = 0
    rows: int = 0
    skipped: int = 0


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def save_checkpoint(
    folder: Path,
    drafter: Drafter,
    optimizer: dict[str, Tensor] | None,
    position: Position,
    facts: dict[str, Any],
    world: World | None = None,
) -> None:
    """Write a checkpoint; it exists when its state file does.

    facts: what else the state file should say; its `run` tells whose checkpoint it is. world: every rank calls
    this and brings its own part of the optimiser's state, None where it has none to write; rank 0 writes the rest.
    """
    world = world or World()
    if world.leads:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    world.wait()
    if optimizer is not None:
        write_whole(folder / _optimizer_file(world.rank, world.size), save(contiguous(optimizer)))
    world.wait()
    if world.leads:
        write_whole(folder / WEIGHTS, save(contiguous(drafter.exported_state())))
        drafter.config.write(folder / CONFIG)
        files = [
            {"file": p.name, "bytes": p.stat().st_size, "digest": read_digest(p)}
            for p in sorted(folder.iterdir())
        ]
        state = {"format": FORMAT, "position": asdict(position), "files": files, **facts}
        write_whole(folder / STATE, orjson.dumps(state, option=orjson.OPT_INDENT_2) + b"\n")
    world.wait()


def _optimizer_file(rank: int, size: int) -> str:
    return f"optimizer-{rank:05d}-of-{size:05d}.safetensors"


def contiguous(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors wants them: contiguous, in the order of their names."""
    return {name: state[name].contiguous() for name in sorted(state)}


def fault(folder: Path) -> str | None:
    """Why a folder is no whole checkpoint; None if it is one."""
    if not (folder / STATE).is_file():
        return f"{STATE} is missing, so it was never completed"
    state = read_facts(folder)
    for entry in state["files"]:
        path = folder / entry["file"]
        if not path.is_file():
            return f"{entry['file']} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{entry['file']} has {path.stat().st_size} bytes, {entry['bytes']} were written"
        if read_digest(path) != entry["digest"]:
            return f"the bytes of {entry['file']} are not those that were written"
    return None


def newest_checkpoint(folder: Path, run: str | None = None) -> Path | None:
    """The whole checkpoint with the most steps, of this run where one is named; says on standard error which newer
    ones it passed over."""
    for path in sorted(folder.glob("step-*"), key=_step_of, reverse=True):
        if not path.is_dir():
            continue
        reason = fault(path)
        if reason is None and run is not None and _run_of(path) != run:
            reason = "it is of another run"
        if reason is None:
            return path
        print(f"train: passed over checkpoint {path.name}: {reason}", file=sys.stderr, flush=True)
    return None


def read_position(folder: Path) -> Position:
    return Position(**read_facts(folder)["position"])


def read_facts(folder: Path) -> dict[str, Any]:
    """Everything that the state file says."""
    return read_json(folder / STATE, "the checkpoint's state file")


def load_checkpoint(folder: Path, drafter: Drafter) -> dict[str, Tensor]:
    """Put the weights into the drafter; the optimiser's whole state, empty if the checkpoint holds none."""
    if DrafterConfig.read(folder / CONFIG) != drafter.config:
        raise EyasError(
            "the checkpoint is of a drafter of another shape",
            file=folder,
            mend="remove the folder and train again",
        )
    with torch.no_grad():
        own = drafter.exported_state()
        for name, tensor in load_file(folder / WEIGHTS).items():
            own[name].copy_(tensor)
    shards = [load_file(path) for path in sorted(folder.glob("optimizer-*.safetensors"))]
    if not shards:
        return {}
    return {
        name: torch.cat([shard[name] for shard in shards]) if tensor.dim() else tensor
        for name, tensor in shards[0].items()
    }


def remove_old(
    folder: Path, keep: int, run: str | None = None, protected: frozenset[int] = frozenset()
) -> None:
    """Delete all but the newest `keep` whole checkpoints of this run and the protected steps.

    Another run's checkpoints are neither counted nor touched, whatever their numbers; unfinished ones stay for
    whoever wants to look.
    """
    assert keep >= 1, "the newest checkpoint is never deleted"
    whole = [path for path in sorted(folder.glob("step-*"), key=_step_of) if (path / STATE).is_file()]
    own = [path for path in whole if _run_of(path) == run]
    for path in own[:-keep]:
        if _step_of(path) not in protected:
            shutil.rmtree(path)


def _run_of(folder: Path) -> str | None:
    run: str | None = read_facts(folder).get("run")
    return run


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1
