"""The shape of a drafter that is planned: what decides the cost of its rounds, known before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.core.contract import TargetFacts
from eyas.drafter.config import DrafterConfig, drafter_config

if TYPE_CHECKING:
    from eyas.recipe import Recipe

DRAFT_VOCAB = 32_000
"""Ids of a planned drafter unless a size is given; what the public heads of large targets have."""

COSTLY = (
    "hidden_size", "target_hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "num_aux",
    "vocab_size", "draft_vocab_size",
)  # fmt: skip
"""The fields of a drafter's configuration that size its matrix products; norms and positions cost next to nothing."""


@dataclass(frozen=True)
class Shape:
    """boundaries: the aux boundaries that it reads."""

    config: DrafterConfig
    boundaries: tuple[int, ...]

    @classmethod
    def usual(cls, facts: TargetFacts, draft_vocab: int | None) -> Shape:
        """Every width that of the target, over the usual boundaries."""
        boundaries = _usual_boundaries(facts)
        size = min(draft_vocab or DRAFT_VOCAB, facts.tokenizer_length, facts.vocab_size)
        return cls(DrafterConfig.like_target(facts, len(boundaries), size), boundaries)

    @classmethod
    def of_recipe(cls, recipe: Recipe, facts: TargetFacts) -> Shape:
        """What the recipe's training will make."""
        boundaries = recipe.states.boundaries or _usual_boundaries(facts)
        size = recipe.vocabulary.size or facts.tokenizer_length
        return cls(drafter_config(recipe.training.network, facts, len(boundaries), size), boundaries)

    def plain(self) -> dict[str, int]:
        """What stands in a result, and what two shapes of the same cost have in common."""
        return {name: getattr(self.config, name) for name in COSTLY}


def _usual_boundaries(facts: TargetFacts) -> tuple[int, ...]:
    """The usual three; fewer where a target has so few layers that two of them are one."""
    return tuple(sorted(set(facts.default_boundaries)))
