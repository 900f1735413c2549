"""What decoding one prompt gave, whoever decoded it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from .clock import Moment


@dataclass(frozen=True)
class Decoded:
    """tokens: the answer, the end token included. rounds: tokens that each verification round gave; the
    first token comes from the prefill and is in none. accepted: drafts of each round that were kept.

    first: time to the first token. spent: time of all that came after it. drafting: the drafter's part of
    `spent`, CPU seconds.
    """

    tokens: list[int]
    first: Moment
    spent: Moment
    rounds: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafting: float = 0.0


def until_end(fresh: Sequence[int], room: int, end_ids: Collection[int]) -> list[int]:
    """The part of `fresh` that counts: nothing after an end token, nothing beyond `room` tokens."""
    kept = list(fresh[:room])
    for place, token in enumerate(kept):
        if token in end_ids:
            return kept[: place + 1]
    return kept
