"""What a stage used: wall time, CPU time with its children, and memory, sampled from /proc."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

_PERIOD_S = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """Counts from its making to `plain()`. Memory is the peak of samples taken every 0.25 s."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = _cpu_seconds()
        self._largest = 0
        self._together = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def plain(self) -> dict[str, Any]:
        """seconds, cpu_seconds and peak_rss_mb: of the largest process, and of all together (MiB)."""
        self.close()
        self._sample()
        return {
            "seconds": round(time.perf_counter() - self._wall, 3),
            "cpu_seconds": round(_cpu_seconds() - self._cpu, 3),
            "peak_rss_mb": {"largest": self._largest >> 20, "together": self._together >> 20},
        }

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._sample()

    def _sample(self) -> None:
        sizes = [_resident(pid) for pid in _family(os.getpid())]
        self._largest = max(self._largest, *sizes)
        self._together = max(self._together, sum(sizes))


def _cpu_seconds() -> float:
    """CPU time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    found, ahead = [], [pid]
    while ahead:
        parent = ahead.pop()
        found.append(parent)
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                ahead.extend(int(child) for child in listing.read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0
