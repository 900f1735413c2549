"""The expected accept length on answers that the target sampled, from one unrolled pass.

The answer x is given, so the question is how many rounds a server needed for it. A draft at x's place was
accepted with probability 1{argmax q = x} if drafts are greedy: another draft never leads to x by acceptance,
and where argmax q = x a rejected draft cannot come back out of the residual distribution. If drafts are sampled
from q, P(accepted | the outcome is x) = q(x) min(1, p(x) / q(x)) / p(x) = min(1, q(x) / p(x)), by the
acceptance rule of speculative sampling (Leviathan et al. 2023, Chen et al. 2023). Both p and q are at the
temperature of serving, q over the draft vocabulary, p over the whole.

Rounds from slot t to the end of the turn p..q, backwards:
R(t) = 1 + sum_a P(a accepted at t) R(t + n), n = min(a + 1, q - t - 1), R(t) = 0 where t + 1 >= q.
tau = sum over turns of (q - p) / sum over turns of R(p - 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.core.rows import turns


@dataclass(frozen=True)
class Expectation:
    """Tokens that rounds emit, and the expected number of rounds; sums over turns and rows add up."""

    tokens: int = 0
    rounds: float = 0.0

    def __add__(self, other: Expectation) -> Expectation:
        return Expectation(self.tokens + other.tokens, self.rounds + other.rounds)

    @property
    def accept_length(self) -> float | None:
        return self.tokens / self.rounds if self.rounds else None


def expected_rounds(
    loss_mask: Sequence[int], accepts: Sequence[Sequence[float]], limit: int | None = None
) -> Expectation:
    """Over the turns of one row.

    accepts[k][t]: the chance that step k's draft at slot t is accepted if those before it were; it is read only
    where x_{t+1} .. x_{t+2+k} are labels of one turn. limit: each turn is cut to its first `limit` tokens.
    """
    total = Expectation()
    for first, end in turns(loss_mask):
        last = end if limit is None else min(end, first + limit - 1)
        total += Expectation(last - first, _rounds_from(first - 1, last, accepts))
    return total


def _rounds_from(begin: int, last: int, accepts: Sequence[Sequence[float]]) -> float:
    """R(begin) of a turn that ends at `last`."""
    rounds: dict[int, float] = {}

    def left(slot: int) -> float:
        return rounds[slot] if slot + 1 < last else 0.0

    for slot in range(last - 2, begin - 1, -1):
        possible = min(len(accepts), last - slot - 1) if slot >= 0 else 0
        reached, total = 1.0, 1.0
        for right in range(possible + 1):
            goes_on = accepts[right][slot] if right < possible else 0.0
            emitted = min(right + 1, last - slot - 1)
            total += reached * (1.0 - goes_on) * left(slot + emitted)
            reached *= goes_on
        rounds[slot] = total
    return left(begin)
