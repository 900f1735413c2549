"""The rows of each optimiser step.

The order of an epoch is a function of seed and epoch alone, and progress is counted in rows consumed, so
that a run can go on after any step, with any number of loaders.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.core.rows import lot

_AHEAD = 64
"""Rows looked at when a step is filled: on lengths like those of chats, more than 98 % of a budget of a
few rows is used, and no row waits longer than this many steps."""


def epoch_order(num_rows: int, seed: int, epoch: int) -> list[int]:
    """The rows of one epoch, drawn anew for each."""
    return sorted(range(num_rows), key=lambda row: lot(seed, f"epoch {epoch}", str(row)))


def pack_epoch(lengths: Sequence[int], budget: int, seed: int, epoch: int) -> list[list[int]]:
    """Rows of each step: the oldest row that waits, then whichever of the next ones fill the budget best.

    A row over the budget is a step of its own. Every row is in exactly one step.
    """
    order = epoch_order(len(lengths), seed, epoch)
    waiting = order[:_AHEAD]
    taken = len(waiting)
    steps = []
    while waiting:
        step = [waiting.pop(0)]
        room = budget - lengths[step[0]]
        while (best := _longest_within(waiting, lengths, room)) is not None:
            step.append(waiting.pop(best))
            room -= lengths[step[-1]]
        steps.append(step)
        refill = order[taken : taken + len(step)]
        waiting += refill
        taken += len(refill)
    return steps


def _longest_within(waiting: Sequence[int], lengths: Sequence[int], room: int) -> int | None:
    """The place of the longest waiting row that still fits; the oldest of equal ones."""
    fitting = [place for place, row in enumerate(waiting) if lengths[row] <= room]
    return max(fitting, key=lambda place: (lengths[waiting[place]], -place), default=None)
