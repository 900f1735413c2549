"""Which held-out rows are decoded."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.core.rows import TokenRow, lot, turns


def choose(rows: Sequence[TokenRow], number: int, seed: int) -> list[int]:
    """Indices of `number` rows, one dataset after the other in turn; of a dataset those with the lowest
    lots, the target's own greedy texts first. In the order of dataset and id.

    Rows without a prompt, or whose first answer has one token, are left out: nothing is drafted there.
    """
    ranked: dict[str, list[int]] = {}
    order = sorted(range(len(rows)), key=lambda i: _rank(rows[i], seed))
    for index in order:
        if _has_rounds(rows[index]):
            ranked.setdefault(rows[index].dataset, []).append(index)
    chosen: list[int] = []
    while len(chosen) < number and any(ranked.values()):
        for dataset in sorted(ranked):
            if ranked[dataset] and len(chosen) < number:
                chosen.append(ranked[dataset].pop(0))
    return sorted(chosen, key=lambda i: (rows[i].dataset, rows[i].id))


def _rank(row: TokenRow, seed: int) -> tuple[bool, int]:
    return not row.is_own_greedy_text, lot(seed, row.dataset, row.id)


def _has_rounds(row: TokenRow) -> bool:
    found = turns(row.loss_mask)
    return bool(found) and 0 < found[0][0] < found[0][1]
