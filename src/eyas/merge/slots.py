"""Memory that worker processes fill and this process reads, without a copy between them."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Slots:
    """`count` slots of `size` bytes in one anonymous file, which workers open by `path` however they were started."""

    path: str
    count: int
    size: int

    def start_of(self, number: int) -> int:
        """Where the slot lies that task `number` borrows."""
        return number % self.count * self.size


@contextlib.contextmanager
def slots(count: int, size: int) -> Iterator[Slots]:
    """New slots, there until the end of the context."""
    file = os.memfd_create("eyas-merge")
    try:
        os.ftruncate(file, max(count * size, 1))
        yield Slots(f"/proc/{os.getpid()}/fd/{file}", count, size)
    finally:
        _mapped.cache_clear()
        os.close(file)


def lent(path: str, start: int, size: int) -> memoryview:
    """`size` bytes from `start` of the slots at `path`, to write to or to read."""
    return memoryview(_mapped(path))[start : start + size]


@functools.lru_cache(maxsize=1)
def _mapped(path: str) -> mmap.mmap:
    """The memory of the slots at `path`; a process maps it once."""
    handle = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)
