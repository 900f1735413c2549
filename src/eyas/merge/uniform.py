"""Whether a shuffle spread each dataset evenly, by a rank test on the places of its rows."""

from __future__ import annotations

import math

import numpy as np

from eyas.core.manifest import Manifest
from eyas.merge import rowsidx
from eyas.merge.faults import Faults

_CHANCE = 1e-4
"""A true shuffle fails the test of uniformity this often, over all datasets together."""


def uniformity(positions: np.ndarray, total: int) -> float:
    """Two-sided p-value that a dataset's rows lie at random places among `total`: Mann-Whitney, normal approximation.

    positions: the places of its rows, from 0. 1.0 where one of the two groups has fewer than eight rows.
    """
    inside, outside = len(positions), total - len(positions)
    if min(inside, outside) < 8:
        return 1.0
    surplus = float(positions.sum()) - inside * (total - 1) / 2
    return math.erfc(abs(surplus) / math.sqrt(inside * outside * (total + 1) / 12) / math.sqrt(2))


def shuffle_faults(manifest: Manifest, index: rowsidx.RowsIndex, faults: Faults) -> None:
    """Whether each dataset is spread evenly over the training rows."""
    datasets = sorted({file["dataset"] for file in index.files})
    of_file = np.array([datasets.index(file["dataset"]) for file in index.files])
    places = [block[:, 0].astype(np.int64) for block in index.places("train")]
    if not places:
        return
    rows = of_file[np.concatenate(places)]
    for number, name in enumerate(datasets):
        chance = uniformity(np.flatnonzero(rows == number), len(rows))
        if chance < _CHANCE / len(datasets):
            faults.add("shuffle", f"the rows of {name} are not spread evenly over train (p = {chance:.1e})")
