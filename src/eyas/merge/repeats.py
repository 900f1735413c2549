"""Which keys occurred before: exact, in input order, in memory that does not grow with the data.

Keys are read from their source once for every million of them; each time those of one class (by their remainder)
are sorted. 16-byte keys are digests that stand for content; 8-byte keys may collide by chance, once in 40,000 runs
over 30 million keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

_AT_ONCE = 1 << 20

Runs = Callable[[], Iterator[tuple[int, np.ndarray]]]
"""Gives (number of its first line, uint64 keys [n] or [n, 2]) runs, anew at each call; a key of zeros is none."""


def repeats(runs: Runs, total: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(lines, times) of keys that occurred before: times is 2 for the second occurrence, 3 for the third ..."""
    classes = max(1, -(-total // _AT_ONCE))
    for chosen in range(classes):
        lines, keys = _of_class(runs, chosen, classes)
        if not len(lines):
            continue
        order = np.lexsort((lines, *keys.T))
        same = np.zeros(len(order), bool)
        same[1:] = (keys[order[1:]] == keys[order[:-1]]).all(1)
        positions = np.arange(len(order))
        firsts = np.maximum.accumulate(np.where(same, 0, positions))
        yield lines[order[same]], (positions - firsts + 1)[same]


def _of_class(runs: Runs, chosen: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    lines, keys = [np.empty(0, np.uint32)], []
    for at, run in runs():
        run = run.reshape(len(run), -1)
        there = np.flatnonzero(run.any(1) & (run[:, 0] % np.uint64(classes) == chosen))
        lines.append((there + at).astype(np.uint32))
        keys.append(run[there])
    return np.concatenate(lines), np.concatenate(keys) if keys else np.empty((0, 1), np.uint64)
