"""Rows in = rows out + drops, each drop with a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .errors import EyasError


@dataclass
class Counts:
    """What went into a stage and what became of it."""

    rows_in: int = 0
    rows_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def keep(self) -> None:
        self.rows_in += 1
        self.rows_out += 1

    def drop(self, reason: str) -> None:
        self.rows_in += 1
        self.dropped[reason] += 1

    def add(self, other: Counts) -> None:
        self.rows_in += other.rows_in
        self.rows_out += other.rows_out
        self.dropped.update(other.dropped)

    def check(self) -> None:
        assert self.rows_in == self.rows_out + sum(self.dropped.values()), f"rows do not add up: {self}"

    def plain(self) -> dict[str, Any]:
        """The form of a manifest; reasons in the order of their names."""
        self.check()
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted(self.dropped.items())),
        }

    def require(self, share: float, what: str, mend: str) -> None:
        """Raise EyasError if nothing, or less than `share` of the rows that came in, was kept."""
        self.check()
        if self.rows_out == 0 or self.rows_out < share * self.rows_in:
            reasons = (
                ", ".join(f"{reason}: {n}" for reason, n in self.dropped.most_common()) or "no rows came in"
            )
            raise EyasError(
                f"{what}: {self.rows_out} of {self.rows_in} rows were kept",
                expected=f"at least one row and {share:.0%} of those that came in",
                found=reasons,
                mend=mend,
            )
