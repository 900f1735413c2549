"""Stopping: SIGTERM and Ctrl-C end a run after the step at hand, with a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from eyas.core.errors import StoppedEarly


@contextlib.contextmanager
def stop_flag() -> Iterator[list[int]]:
    """A list that gets the number of a stop signal; a second Ctrl-C ends the process at once."""
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, _: FrameType | None) -> None:
        stop.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_early(number: int) -> None:
    """KeyboardInterrupt (exit code 130) for Ctrl-C, StoppedEarly (3) for everything else."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise StoppedEarly(
        "training was stopped; a checkpoint is written", mend="give the same command again to go on"
    )
