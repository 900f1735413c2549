"""The training log: one JSON line a step, without times, so that a broken run's log equals an unbroken one's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson

from eyas.core.files import read_lines, write_whole

TAIL = 50
"""Steps that a final figure is averaged over."""


class TrainLog:
    """Appends to `path`; lines of steps after the resumed one are cut off first."""

    def __init__(self, path: Path, done_steps: int) -> None:
        lines = [line for _, line in read_lines(path)] if path.exists() else []
        assert len(lines) >= done_steps, f"{path} is shorter than the checkpoint it belongs to"
        write_whole(path, [line + b"\n" for line in lines[:done_steps]])
        self._file = open(path, "ab")  # noqa: SIM115

    def add(self, line: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(line) + b"\n")

    def sync(self) -> None:
        """Everything logged so far is on the disk; before a checkpoint is completed."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for _, line in read_lines(path)]


def tail_means(lines: list[dict[str, Any]], key: str) -> list[float | None]:
    """The mean of a per-step list over the last TAIL lines, entry by entry; None where no line has one."""
    means = []
    for entries in zip(*(line[key] for line in lines[-TAIL:]), strict=True):
        known = [entry for entry in entries if entry is not None]
        means.append(round(sum(known) / len(known), 6) if known else None)
    return means
