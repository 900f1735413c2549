"""Which of the valid rows stay, and on which side: duplicates, samples, caps, the development split.

Every choice is a row's lot, a function of seed, dataset and the row's line (its id for the development split), so
none depends on other datasets, on workers or on the order of the command line.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.rows import lot
from .options import MergeOptions
from .rules import DUPLICATE, INVALID, NOT_SAMPLED, OVER_CAP, OVER_CAP_TOKENS
from .scan import BLANK, FACTS, KEPT

CHOSEN_CODES = {DUPLICATE: 100, NOT_SAMPLED: 101, OVER_CAP: 102, OVER_CAP_TOKENS: 103}
REASON_OF = {**dict(enumerate(INVALID, 1)), **{code: reason for reason, code in CHOSEN_CODES.items()}}

_ROWS = 1 << 16


class FactsFile:
    """The facts of all lines, on the disk; read and changed in runs of 65,536 lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 - closed by close()

    def append(self, facts: np.ndarray) -> None:
        self._file.seek(0, 2)
        self._file.write(facts.tobytes())

    def runs(self, first: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """(number of its first line, facts) of each run of lines in [first, end)."""
        for at in range(first, end, _ROWS):
            count = min(_ROWS, end - at)
            self._file.seek(at * FACTS.itemsize)
            yield at, np.frombuffer(self._file.read(count * FACTS.itemsize), FACTS).copy()

    def write(self, at: int, facts: np.ndarray) -> None:
        self._file.seek(at * FACTS.itemsize)
        self._file.write(facts.tobytes())

    def close(self) -> None:
        self._file.close()


def drop_unsampled(facts: FactsFile, lines: tuple[int, int], dataset: str, share: float, seed: int) -> None:
    """Drop the rows of a dataset whose lot is not below `share`."""
    limit = share * 2**64
    for at, run in facts.runs(*lines):
        for i in np.flatnonzero(run["reason"] == KEPT).tolist():
            if line_lot(seed, dataset, at + i - lines[0] + 1) >= limit:
                run["reason"][i] = CHOSEN_CODES[NOT_SAMPLED]
        facts.write(at, run)


def drop_over_cap(facts: FactsFile, lines: tuple[int, int], dataset: str, options: MergeOptions) -> None:
    """Keep the rows with the lowest lots: `cap` of them, and no more than fit in `cap_tokens`."""
    cap, cap_tokens = options.cap.get(dataset), options.cap_tokens.get(dataset)
    entries: list[tuple[int, int, int]] = []
    for at, run in facts.runs(*lines):
        for i in np.flatnonzero(run["reason"] == KEPT).tolist():
            line = at + i
            entries.append((line_lot(options.seed, dataset, line - lines[0] + 1), line, int(run["tokens"][i])))
    entries.sort()
    over: dict[int, int] = {}
    if cap is not None:
        over.update((line, CHOSEN_CODES[OVER_CAP]) for _, line, _ in entries[cap:])
        entries = entries[:cap]
    if cap_tokens is not None:
        total, full = 0, False
        for _, line, tokens in entries:
            total += tokens
            full = full or total > cap_tokens
            if full:
                over[line] = CHOSEN_CODES[OVER_CAP_TOKENS]
    for at, run in facts.runs(*lines):
        for line in range(at, at + len(run)):
            if line in over:
                run["reason"][line - at] = over[line]
        facts.write(at, run)


def line_lot(seed: int, dataset: str, line: int) -> int:
    """The lot of a line; lines are numbered from 1 through the dataset's files."""
    return lot(seed, dataset, str(line))


def drop_duplicates(facts: FactsFile, keys: Path, total: int) -> None:
    """Drop rows whose key an earlier row has."""
    seen: set[bytes] = set()
    with open(keys, "rb") as file:
        for at, run in facts.runs(0, total):
            for i in range(len(run)):
                key = file.read(16)
                if run["reason"][i] != KEPT:
                    continue
                if key in seen:
                    run["reason"][i] = CHOSEN_CODES[DUPLICATE]
                seen.add(key)
            facts.write(at, run)


def kept_lines(facts: FactsFile, lines: tuple[int, int]) -> array[int]:
    """The numbers of the lines of a range that are kept, in input order."""
    kept = array("I")
    for at, run in facts.runs(*lines):
        kept.frombytes((np.flatnonzero(run["reason"] == KEPT) + at).astype(np.uint32).tobytes())
    return kept


def is_blank(facts: np.ndarray) -> np.ndarray:
    return facts["reason"] == BLANK
