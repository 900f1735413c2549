"""Rejection sampling that leaves the target's distribution exactly as it is.

Source: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1, for a chain whose drafts were sampled from the
drafter. For a tree, whose candidates are the drafter's highest and not sampled, a candidate counts as drawn from
a distribution that is all on it: it is accepted with the target's probability, else struck out of the target's
distribution and the next is tried (SpecInfer's multi-step rule, arXiv 2305.09781, for certain drafts).

Shapes: D drafts, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) over the last dimension, in float64: ratios of small numbers decide below."""
    return (logits.double() / temperature).softmax(-1)


def draw(weights_V: Tensor, generator: torch.Generator) -> int:
    """An id drawn by its weight; the weights need not sum to 1."""
    return int(torch.multinomial(weights_V, 1, generator=generator))


def accept_chain(
    drafts: Sequence[int], drafted_DV: Tensor, wanted_SV: Tensor, generator: torch.Generator
) -> list[int]:
    """The tokens of a round: the accepted drafts and one more, drawn where the first was refused.

    drafted_DV: the distributions that the drafts were drawn from. wanted_SV [D + 1, V]: the target's, after the
    last token and after each draft.
    """
    kept: list[int] = []
    for step, token in enumerate(drafts):
        wanted, drafted = wanted_SV[step], drafted_DV[step]
        chance = float(torch.rand((), generator=generator, dtype=torch.float64))
        if chance * float(drafted[token]) >= float(wanted[token]):
            rest = (wanted - drafted).clamp(min=0)
            return [*kept, draw(rest if bool(rest.any()) else wanted, generator)]
        kept.append(token)
    return [*kept, draw(wanted_SV[len(drafts)], generator)]


def accept_candidate(
    candidates: Sequence[int], wanted_V: Tensor, generator: torch.Generator
) -> tuple[int | None, int]:
    """(index of the accepted candidate or None, the token): candidates are distinct, tried in their order."""
    rest = wanted_V.clone()
    for index, token in enumerate(candidates):
        chance = float(torch.rand((), generator=generator, dtype=torch.float64))
        if chance * float(rest.sum()) < float(rest[token]):
            return index, token
        rest[token] = 0.0
    return None, draw(rest, generator)
