"""How often a draft is right, with the denominators named.

Unconditional accuracy of step k: hits / |S_k|, all slots that serving could draft step k from; a target
outside the draft vocabulary is a miss (EAGLE's denominator; AutoModel leaves those out). Conditional
accuracy of step k: among the slots of S_k where every earlier draft was right (the paper's n-alpha).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Accuracy:
    """Sums over any number of batches."""

    num_steps: int
    slots: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for sums in (self.slots, self.hits, self.reached, self.held):
            sums.extend([0] * self.num_steps)

    def add(self, hits: Sequence[Tensor], keeps: Sequence[Tensor]) -> None:
        """hits: [S_k] bool for each step; keeps: the places of S_k among S_{k-1} (StepSlots.keep_S)."""
        alive = None
        for k, (hits_S, keep_S) in enumerate(zip(hits, keeps, strict=True)):
            reached_S = hits_S.new_ones(len(hits_S)) if alive is None else alive[keep_S]
            alive = reached_S & hits_S
            self.slots[k] += len(hits_S)
            self.hits[k] += int(hits_S.sum())
            self.reached[k] += int(reached_S.sum())
            self.held[k] += int(alive.sum())

    def merge(self, other: Accuracy) -> None:
        """Add the sums of another."""
        for mine, theirs in (
            (self.slots, other.slots),
            (self.hits, other.hits),
            (self.reached, other.reached),
            (self.held, other.held),
        ):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]

    @property
    def unconditional(self) -> list[float | None]:
        return [_share(*pair) for pair in zip(self.hits, self.slots, strict=True)]

    @property
    def conditional(self) -> list[float | None]:
        return [_share(*pair) for pair in zip(self.held, self.reached, strict=True)]

    @property
    def expected_length(self) -> float | None:
        """1 + sum_k P(drafts 0 .. k all right), over all slots that could draft, a slot past a turn's end counting as
        a miss. What other trainers show; it overstates the walk by 0.15 to 0.2, since a server does not start
        rounds at every slot alike."""
        return round(1 + sum(self.held) / self.slots[0], 6) if self.num_steps and self.slots[0] else None

    def flat(self) -> list[int]:
        """All sums in a row, for sending."""
        return [*self.slots, *self.hits, *self.reached, *self.held]

    @classmethod
    def from_flat(cls, sums: Sequence[float]) -> Accuracy:
        """From `flat` of one, or of several added up."""
        num_steps = len(sums) // 4
        made = cls(num_steps)
        for at, table in enumerate((made.slots, made.hits, made.reached, made.held)):
            table[:] = [int(value) for value in sums[at * num_steps : (at + 1) * num_steps]]
        return made

    def plain(self) -> dict[str, object]:
        return {
            "slots": self.slots,
            "unconditional": self.unconditional,
            "reached": self.reached,
            "conditional": self.conditional,
        }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
