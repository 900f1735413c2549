"""Choosing the draft vocabulary: the most frequent labels, with rules for everything that is not settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from eyas.core.errors import EyasError
from eyas.core.rows import TokenRow

Counts = np.ndarray


def count_tokens(rows: Iterable[TokenRow], vocab_size: int) -> tuple[Counts, Counts]:
    """(labels, all tokens): int64 [V] counts of each id."""
    labels, everything = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    for row in rows:
        ids = np.asarray(row.input_ids)
        if ids.size and ids.max() >= vocab_size:
            raise EyasError(
                "a row holds an id that the target does not know",
                record=row.id,
                expected=f"ids below {vocab_size}",
                found=int(ids.max()),
                mend="tokenise with this target's tokenizer",
            )
        everything += np.bincount(ids, minlength=vocab_size)
        labels += np.bincount(ids[np.asarray(row.loss_mask, bool)], minlength=vocab_size)
    return labels, everything


def select(
    labels: Counts, everything: Counts, size: int, tokenizer_length: int, forced: Sequence[int]
) -> Counts:
    """`size` rising target ids, all below tokenizer_length (a head may have padding rows beyond).

    Order of preference: forced ids (stop tokens), labels by count, other tokens of the corpus by count,
    the lowest ids; equal counts go to the lower id.
    """
    if not len(set(forced)) <= size <= tokenizer_length:
        raise EyasError(
            "the draft vocabulary has an impossible size",
            expected=f"between {len(set(forced))} (stop tokens) and {tokenizer_length} (the tokenizer's length)",
            found=size,
            mend="correct vocabulary.size; 0 takes the whole tokenizer",
        )
    ids = np.arange(tokenizer_length)
    is_forced = np.isin(ids, list(forced))
    order = np.lexsort((ids, -everything[:tokenizer_length], -labels[:tokenizer_length], ~is_forced))
    return np.sort(order[:size])


def coverage(rows: Iterable[TokenRow], chosen: Counts, vocab_size: int) -> dict[str, float]:
    """Share of the labels of each dataset that a drafter with these ids can emit, and of all together.

    Meant for held-out rows: on the rows that the counts came from it is near 1 whatever the choice.
    """
    can = np.zeros(vocab_size, bool)
    can[chosen] = True
    hit: dict[str, int] = {}
    total: dict[str, int] = {}
    for row in rows:
        labels = np.asarray(row.input_ids)[np.asarray(row.loss_mask, bool)]
        hit[row.dataset] = hit.get(row.dataset, 0) + int(can[labels].sum())
        total[row.dataset] = total.get(row.dataset, 0) + len(labels)
    shares = {name: hit[name] / total[name] for name in sorted(total)}
    if total:
        shares["all"] = sum(hit.values()) / sum(total.values())
    return shares
