"""Batches in the order they are asked for, read ahead by threads or at once.

Threads, not processes: rows are mapped files, and copying out of them and widening them run without the
interpreter's lock. What is read never depends on who reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
P = TypeVar("P")


class Loader:
    """Builds batches with `build`. waited: seconds that the training loop spent in waiting for one."""

    def __init__(self, build: Callable[[Any], T], workers: int) -> None:
        self.build = build
        self.workers = workers
        self.waited = 0.0

    def batches(self, parts: Iterable[P]) -> Generator[Any, None, None]:
        """build(part) of every part, in order; at most 2 * workers are held beside the one in use."""
        source: Iterator[Any] = self._threaded(parts) if self.workers else map(self.build, parts)
        try:
            while True:
                begun = time.perf_counter()
                try:
                    batch = next(source)
                except StopIteration:
                    return
                self.waited += time.perf_counter() - begun
                yield batch
        finally:
            if isinstance(source, Generator):
                source.close()

    def _threaded(self, parts: Iterable[P]) -> Generator[Any, None, None]:
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="loader") as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(self.build, part))
                    if len(waiting) >= 2 * self.workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
