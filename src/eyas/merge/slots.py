"""Memory that worker processes fill and this process reads, without a copy between them."""

from __future__ import annotations

import functools
import mmap
import os
from types import TracebackType


class Slots:
    """`count` slots of `size` bytes in one anonymous file, which workers open by `path` however they were started."""

    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = count, size
        self._file = os.memfd_create("eyas-merge")
        os.ftruncate(self._file, max(count * size, 1))
        self._memory = mmap.mmap(self._file, 0)
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"

    def __enter__(self) -> Slots:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mapped.cache_clear()
        os.close(self._file)
        self._memory.close()

    def start_of(self, number: int) -> int:
        """Where the slot lies that task `number` borrows."""
        return number % self._count * self._size

    def view(self, start: int, size: int) -> memoryview:
        """`size` bytes from `start` on."""
        return memoryview(self._memory)[start : start + size]


def lent(path: str, start: int, size: int) -> memoryview:
    """`size` bytes from `start` of the slots at `path`, to write to."""
    return memoryview(mapped(path))[start : start + size]


@functools.lru_cache(maxsize=1)
def mapped(path: str) -> mmap.mmap:
    """The memory of the slots at `path`; a worker maps it once."""
    handle = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(handle, 0)
    finally:
        os.close(handle)
