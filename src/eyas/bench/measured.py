"""What one system gave for a list of requests, whoever it is: the reference decoder or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .counters import Counters


@dataclass(frozen=True)
class Sample:
    """One request. tokens: the answer, the first token included. begun, ended: seconds on one clock, from the first
    token to the last. rounds, accepted: of this request, where the system tells them; accepted drafts of each round."""

    id: str
    prompt_tokens: int
    tokens: list[int]
    begun: float
    ended: float
    rounds: int | None = None
    accepted: list[int] | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


@dataclass
class Measured:
    """counters: the server's difference around the requests. foreign: its counters moved without our requests."""

    samples: list[Sample] = field(default_factory=list)
    counters: Counters | None = None
    foreign: bool = False

    def add(self, other: Measured) -> None:
        """More of the same, measured on whatever clock at another time: the two spans do not overlap."""
        end = max((sample.ended for sample in self.samples), default=0.0)
        shift = end - min((sample.begun for sample in other.samples), default=0.0)
        self.samples += [replace(s, begun=s.begun + shift, ended=s.ended + shift) for s in other.samples]
        if other.counters is not None:
            self.counters = other.counters if self.counters is None else self.counters.plus(other.counters)
        self.foreign |= other.foreign

    @property
    def tokens(self) -> int:
        """Of all answers, first tokens included."""
        return sum(len(sample.tokens) for sample in self.samples)

    @property
    def decoded(self) -> int:
        """Tokens after the first of each answer."""
        return self.tokens - len(self.samples)

    @property
    def rounds(self) -> int | None:
        """Verification rounds: those that the requests tell, else the server's drafts; None if neither is known."""
        told = [sample.rounds for sample in self.samples]
        if self.counters is not None:
            return self.counters.drafts or None
        return sum(n for n in told if n is not None) or None if None not in told else None

    @property
    def seconds(self) -> float:
        """Time in which at least one answer was being decoded, first tokens excluded."""
        return covered([(sample.begun, sample.ended) for sample in self.samples])

    @property
    def stream_seconds(self) -> float:
        return sum(sample.seconds for sample in self.samples)


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of the spans."""
    total, end = 0.0, -float("inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, end))
        end = max(end, ended)
    return total
