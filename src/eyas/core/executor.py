"""The local executor: a stage's units, done by a plain function in this process or in worker processes.

Workers are forked where torch is not loaded (they start in milliseconds), else spawned. They have one result a
time in flight, and die with this process: the kernel kills them when it goes, whatever killed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from .errors import EyasError

Task = TypeVar("Task")
Kind = TypeVar("Kind", covariant=True)
Result = TypeVar("Result")


class Countable(Protocol[Kind]):
    """Tasks whose number is known; each may be made when it is asked for."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Kind]: ...


AHEAD = 2
"""Tasks a worker that are begun before a result is taken."""

_PR_SET_PDEATHSIG = 1


def each(
    function: Callable[[Task], Result],
    tasks: Countable[Task],
    workers: int,
    setup: Callable[..., None] | None = None,
    setup_args: tuple[Any, ...] = (),
) -> Iterator[tuple[Task, Result]]:
    """(task, function(task)) in the order of completion.

    function and setup are module-level functions; setup(*setup_args) runs once in each process before
    its first task. With workers <= 1 everything runs here, in the order of `tasks`.
    """
    if not len(tasks):
        return
    if workers <= 1:
        if setup is not None:
            setup(*setup_args)
        for task in tasks:
            yield task, function(task)
        return
    with _started(min(workers, len(tasks)), setup, setup_args) as pool:
        yield from _drain(pool, function, tasks, workers)


def in_order(
    function: Callable[[Task], Result], tasks: Countable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """(task, function(task)) in the order of `tasks`.

    Task n + AHEAD * workers is made and begun only after the result of task n was taken and the next one asked for:
    what a task borrows for its result can be lent again after so many tasks.
    """
    if workers <= 1 or not len(tasks):
        yield from each(function, tasks, 1)
        return
    with _started(min(workers, len(tasks))) as pool:
        running: deque[tuple[Task, Future[Result]]] = deque()
        for task in tasks:
            running.append((task, pool.submit(function, task)))
            if len(running) == AHEAD * workers:
                done, future = running.popleft()
                yield done, future.result()
        while running:
            done, future = running.popleft()
            yield done, future.result()


@contextlib.contextmanager
def _started(
    workers: int, setup: Callable[..., None] | None = None, setup_args: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn" if "torch" in sys.modules else "fork")
    pool = ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(os.getpid(), setup, setup_args)
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        raise EyasError(
            "a worker process died",
            found=str(error),
            mend="see its message above; if it ran out of memory, lower the batch or the number of workers",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _drain(
    pool: ProcessPoolExecutor, function: Callable[[Task], Result], tasks: Countable[Task], workers: int
) -> Iterator[tuple[Task, Result]]:
    """Keep AHEAD tasks a worker in flight, so that results never pile up."""
    ahead = iter(tasks)
    running: dict[Future[Result], Task] = {}
    while True:
        while len(running) < AHEAD * workers and (task := next(ahead, None)) is not None:
            running[pool.submit(function, task)] = task
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield running.pop(future), future.result()


def _start_worker(parent: int, setup: Callable[..., None] | None, setup_args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if setup is not None:
        setup(*setup_args)
