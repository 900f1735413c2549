"""The development split: which checkpoint is the best one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eyas.states.store import StateStore

from .network import Drafter
from .walk import walk_store


@dataclass(frozen=True)
class Best:
    """The step with the greatest accept length on the development split so far; the earlier of equal ones."""

    step: int
    accept_length: float


def evaluate(drafter: Drafter, store: StateStore, drafts: int) -> dict[str, Any]:
    """Accept length of the walk over the split, pooled, and the unconditional accuracy of each step."""
    walk = walk_store(drafter, store, drafts)
    return {"accept_length": walk.accept_length, "accuracy": walk.accuracy.unconditional}


def better(best: Best | None, step: int, figures: dict[str, Any]) -> Best | None:
    """The best after an evaluation at `step`."""
    length = figures["accept_length"]
    if length is None or (best is not None and length <= best.accept_length):
        return best
    return Best(step, length)
