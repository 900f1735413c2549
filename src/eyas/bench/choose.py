"""Which held-out rows are decoded."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.core.rows import lot, turns
from eyas.states.store import StateRow


def choose(rows: Sequence[StateRow], number: int, seed: int) -> list[StateRow]:
    """`number` rows, one dataset after the other in turn; of a dataset those with the lowest lots, the
    target's own greedy texts first.

    Rows without a prompt, or whose first answer has one token, are left out: nothing is drafted there.
    """
    ranked: dict[str, list[StateRow]] = {}
    for row in sorted(rows, key=lambda row: (not row.is_own_greedy_text, lot(seed, row.dataset, row.id))):
        if _has_rounds(row):
            ranked.setdefault(row.dataset, []).append(row)
    chosen: list[StateRow] = []
    while len(chosen) < number and any(ranked.values()):
        for dataset in sorted(ranked):
            if ranked[dataset] and len(chosen) < number:
                chosen.append(ranked[dataset].pop(0))
    return sorted(chosen, key=lambda row: (row.dataset, row.id))


def _has_rounds(row: StateRow) -> bool:
    found = turns(row.loss_mask_T.tolist())
    return bool(found) and 0 < found[0][0] < found[0][1]
