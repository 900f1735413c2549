"""Row ids that are unique within their dataset, as `core.rows.RowIds` gives them."""

from __future__ import annotations

import numpy as np

from ..core.rows import RowIds
from .index import NAMELESS, LineIndex
from .scan import KEPT
from .select import FactsFile


def suffixes(index: LineIndex, facts: FactsFile, first: int, end: int) -> dict[int, int]:
    """line -> the number after `~` for each row of a dataset whose own id an earlier row of it has."""
    found: dict[int, int] = {}
    seen: dict[int, int] = {}
    for at, run in facts.runs(first, end):
        for i in np.flatnonzero((run["reason"] == KEPT) & (run["id_hash"] != 0)).tolist():
            key = int(run["id_hash"][i])
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > 1:
                found[at + i] = seen[key]
    return found


__all__ = ["NAMELESS", "RowIds", "suffixes"]
