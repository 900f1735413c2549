"""Several processes under torchrun: who is there, and a module whose gradients are summed over them.

Ranks sum, they do not average: the loss of a part is already divided by the counts of the whole step. With
DDP every rank holds all weights; with FSDP2 each holds its rows of every trained matrix. gloo notices a dead
peer by its closed connection and torchrun ends the other ranks, so the time limit below is only for a rank
that hangs without dying; rank 0 may walk the held-out rows for as long while the others wait.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from .network import Drafter

_PATIENCE = datetime.timedelta(hours=2)


class World:
    """The processes of a run. Alone, everything is done here and nothing is sent."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def leads(self) -> bool:
        """The rank that writes what is written once."""
        return self.rank == 0

    def summed(self, values: list[float]) -> list[float]:
        """The sum over all ranks, in float64."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def told(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until every rank is here."""
        self.summed([0.0])


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """The world that torchrun started this process in, or this process alone. A process group that is already
    there is used and left as it is.

    Whatever holds the group (trainer, DDP, FSDP2) must be local to functions called inside, so that it is gone here.
    """
    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size())
    elif not dist.is_torchelastic_launched():
        yield World()
    else:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE)
        try:
            yield World(dist.get_rank(), dist.get_world_size())
        except BaseException as error:
            _clear_frames(error)
            raise
        finally:
            leave()


def leave() -> None:
    """Destroy the process group and end its threads.

    torch's destroy_process_group only drops its own references: gloo's threads are joined by the group's destructor,
    so when the last holder is gone. A thread that outlives the interpreter and still has the tensor of a finished
    collective to free asks for the interpreter's lock, is ended inside a destructor, and the process aborts
    ("terminate called without an active exception", in 4 of 10 jobs of two ranks). The holders are the modules of DDP
    and FSDP2, which are cycles. They go first: if DDP's reducer were the last, the threads would be joined with the
    interpreter's lock in hand.
    """
    gc.collect()
    dist.destroy_process_group()


def _clear_frames(error: BaseException | None) -> None:
    """Empty the finished frames of an error and of those behind it; their locals hold the trainer."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class Parallel:
    """A training step's module on every rank. Call it as the module itself, and take the optimiser's parameters
    from it after this: FSDP2 puts shards in their place."""

    def __init__(self, module: nn.Module, drafter: Drafter, world: World, kind: str) -> None:
        self.drafter, self.world = drafter, world
        self.module: nn.Module = module
        if world.size > 1 and kind == "ddp":
            wrapped = DistributedDataParallel(module, forward_sync_buffers=False)
            # a lambda, because DDP refuses annotations that are text, as they are in this file
            wrapped.register_comm_hook(None, lambda _, bucket: _sum_bucket(bucket))
            self.module = wrapped
        elif world.size > 1:
            frozen = {p for p in module.parameters() if not p.requires_grad}
            sharded = fully_shard(
                module, mesh=_mesh(drafter.d2t.device.type, world.size), ignored_params=frozen
            )
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
            self.module = module

    @property
    def is_sharded(self) -> bool:
        return isinstance(self.module, FSDPModule)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def part(self, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of one part of a step: gradients go over the wire with the last."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
        elif isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return contextlib.nullcontext()

    def plain(self) -> Drafter:
        """The drafter with whole weights: itself, or a gathered copy. Every rank must call this."""
        if not self.is_sharded:
            return self.drafter
        with torch.device(self.drafter.d2t.device):
            copy = Drafter(self.drafter.config)
        if not self.drafter.config.has_own_embedding:
            copy.share_embedding(self.drafter.embed_tokens.weight)
        state = {name: whole(tensor) for name, tensor in self.drafter.exported_state().items()}
        copy.to(state["fc.weight"].dtype).load_state_dict(state, strict=False)
        return copy.requires_grad_(False)

    def load(self, drafter: Drafter) -> None:
        """Take the weights of a whole drafter."""
        if drafter is self.drafter:
            return
        with torch.no_grad():
            own = self.drafter.exported_state()
            for name, tensor in drafter.exported_state().items():
                own[name].copy_(like(tensor, own[name]))


def _mesh(device: str, size: int) -> DeviceMesh:
    """All ranks in a row, on the drafter's own kind of device; torch's default is a GPU wherever there is one.

    DTensor's caches keep a mesh until the process ends, and a mesh keeps its group for torch.compile alone: eager
    code finds it by name. So that `leave` can destroy the group, the mesh lets go of it.
    """
    mesh = init_device_mesh(device, (size,))
    mesh._pg_registry.clear()
    return mesh


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor of which each rank holds a shard."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor on the other's device, and sharded as the other is unless it is a single number."""
    tensor = tensor.to(other.device)
    if isinstance(other, DTensor) and tensor.dim():
        return distribute_tensor(tensor, other.device_mesh, other.placements)
    return tensor


def _sum_bucket(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    summed = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return summed.then(lambda future: future.value()[0])
