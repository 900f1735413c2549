"""Two drafters without a network, as floors: a drafter that does not beat them is not worth serving.

Both give drafts[k][t], what step k drafts at slot t for x_{t+2+k} knowing x_0 .. x_{t+1}, in the form that
`walk_rounds` walks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from eyas.core.rows import TokenRow
from eyas.drafter.walk import NO_DRAFT, walk_rounds

LONGEST_SUFFIX = 3
"""Prompt look-up matches at most so many last tokens."""

Guess = Callable[[Sequence[int], int], list[list[int]]]
"""(ids, number of drafts) -> drafts[k][t]."""


def bigrams(rows: Iterable[TokenRow]) -> dict[int, int]:
    """The most frequent successor of each token within the answers of `rows`; ties go to the lower id."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        ids, mask = row.input_ids, row.loss_mask
        for i in range(len(ids) - 1):
            if mask[i] and mask[i + 1]:
                counts[ids[i]][ids[i + 1]] += 1
    return {token: min(after, key=lambda id_: (-after[id_], id_)) for token, after in counts.items()}


def bigram_guess(successor: dict[int, int]) -> Guess:
    """Drafts that follow the table from x_{t+1} on; nothing after a token that it does not know."""

    def guess(ids: Sequence[int], drafts: int) -> list[list[int]]:
        made = []
        last = [*ids[1:], NO_DRAFT]
        for _ in range(drafts):
            last = [successor.get(token, NO_DRAFT) for token in last]
            made.append(last)
        return made

    return guess


def lookup_guess(ids: Sequence[int], drafts: int) -> list[list[int]]:
    """Prompt look-up: what followed the most recent earlier place of the longest suffix, 3 tokens at most."""
    made = [[NO_DRAFT] * len(ids) for _ in range(drafts)]
    after: dict[tuple[int, ...], int] = {}
    for end in range(len(ids)):
        suffixes = [tuple(ids[end - n + 1 : end + 1]) for n in range(min(LONGEST_SUFFIX, end + 1), 0, -1)]
        start = next((after[suffix] for suffix in suffixes if suffix in after), None)
        if end >= 1 and start is not None:
            for k, token in enumerate(ids[start : min(start + drafts, end + 1)]):
                made[k][end - 1] = token
        after.update(dict.fromkeys(suffixes, end + 1))
    return made


def floor(guess: Guess, rows: Iterable[TokenRow], drafts: int) -> float:
    """Accept length of `guess` over the rows, pooled; 1.0 if no row has a round."""
    rounds: list[int] = []
    for row in rows:
        rounds += walk_rounds(row.input_ids, row.loss_mask, guess(row.input_ids, drafts))
    return sum(rounds) / len(rounds) if rounds else 1.0
