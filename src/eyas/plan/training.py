"""What training will take before anything is built: parameters by part, steps, each term of a process's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eyas.core.contract import TargetFacts
from eyas.drafter.config import DrafterConfig
from eyas.drafter.options import TrainOptions
from eyas.drafter.prediction import (
    Slots,
    forward_tokens,
    memory_terms,
    parameter_counts,
    trained_counts,
)
from eyas.report.text import new_table, number, size

if TYPE_CHECKING:
    from rich.console import RenderableType

PER_TOKEN = ("batch", "activations", "workspace", "allocator")
"""The terms that grow with the tokens of a forward."""


def outline(
    options: TrainOptions,
    facts: TargetFacts,
    num_aux: int,
    draft_vocab_size: int,
    lengths: Sequence[int],
    label_share: float = 1.0,
    processes: int = 1,
) -> dict[str, Any]:
    """Parameters by part, the trained ones, steps, tokens of a forward, and bytes by term and in all.

    lengths: tokens of the rows, or of as many typical ones. label_share: of the tokens that carry a term; 1 is
    the most that it can be.
    """
    changes = {
        name: getattr(options.network, name)
        for name in options.network.__dataclass_fields__
        if getattr(options.network, name) is not None
    }
    config = DrafterConfig.like_target(facts, num_aux, draft_vocab_size, **changes)
    tokens = forward_tokens(options, lengths, processes)
    slots = Slots.most(tokens, options.ttt_steps, label_share)
    terms = memory_terms(config, options, slots, processes=processes)
    total = sum(lengths)
    return {
        "parameters": parameter_counts(config),
        "trained_parameters": sum(trained_counts(config, options).values()),
        "steps": -(-total * options.epochs // options.tokens_per_step),
        "forward_tokens": tokens,
        "memory": terms,
        "memory_bytes": sum(terms.values()),
        "bytes_per_token": sum(terms[name] for name in PER_TOKEN) // max(tokens, 1),
    }


def tables(plan: dict[str, Any]) -> list[RenderableType]:
    """The outline for a terminal."""
    weights = new_table("The drafter", "part", "parameters")
    for part, count in plan["parameters"].items():
        if count:
            weights.add_row(part, number(count))
    memory = new_table("Memory of a process", "what", "bytes")
    for term, count in plan["memory"].items():
        memory.add_row(term.replace("_", " "), size(count))
    sentence = (
        f"{number(plan['trained_parameters'])} parameters are trained in some {number(plan['steps'])} steps; a forward "
        f"holds up to {number(plan['forward_tokens'])} tokens at {size(plan['bytes_per_token'])} each, and the peak is "
        f"{size(plan['memory_bytes'])}. training.tokens_per_forward, recompute and head_chunk make it smaller."
    )
    return [weights, memory, sentence]
