"""Where the computing is done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eyas.core.errors import EyasError


def chosen_device(name: str) -> torch.device:
    """`auto`: a GPU where there is one. Under torchrun each process takes the GPU of its local rank."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise EyasError(
            "training.device is cuda, but torch finds no GPU",
            expected="a GPU and a torch that was built for it",
            mend="set training.device to auto or cpu",
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def on_device(value: Any, device: torch.device) -> Any:
    """A dataclass of tensors with all of them on the device; itself where that is the CPU, where rows are made."""
    if device.type == "cpu":
        return value
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, list):
        return [on_device(item, device) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: on_device(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Matrix products on `number` threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
