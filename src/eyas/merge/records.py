"""The records of all lines, on the disk: 29 bytes a line, read and changed in runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eyas.merge.reasons import CHOSEN, INVALID
from eyas.merge.scan import KEPT, RECORD

_RUN = 1 << 16
CODES = {reason: code for code, reason in enumerate((*INVALID, *CHOSEN), 1)}
"""Reason -> its code in a record."""
REASONS = {code: reason for reason, code in CODES.items()}


class RecordFile:
    """A file of RECORD entries, one a line, that only this process has open."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 - closed by close()

    def append(self, records: np.ndarray) -> None:
        self._file.seek(0, 2)
        self._file.write(records.tobytes())

    def runs(self, lines: tuple[int, int]) -> Iterator[tuple[int, np.ndarray]]:
        """(number of its first line, its records) for each run of the lines [first, end)."""
        first, end = lines
        for at in range(first, end, _RUN):
            self._file.seek(at * RECORD.itemsize)
            yield at, np.frombuffer(bytearray(self._file.read(min(_RUN, end - at) * RECORD.itemsize)), RECORD)

    def drop(self, at: int, records: np.ndarray, which: np.ndarray, reason: str) -> None:
        """Give the records of a run that `which` (bool) names a reason, here and on the disk."""
        records["reason"][which] = CODES[reason]
        self._file.seek(at * RECORD.itemsize)
        self._file.write(records.tobytes())

    def kept_lines(self, lines: tuple[int, int]) -> Iterator[np.ndarray]:
        """The numbers of the kept lines in [first, end), uint32, run by run in input order."""
        for at, records in self.runs(lines):
            yield (np.flatnonzero(records["reason"] == KEPT) + at).astype(np.uint32)

    def close(self) -> None:
        self._file.close()
