"""What training will take before anything is built: parameters by part, steps, each term of a process's memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.core.contract import TargetFacts, read_facts
from eyas.drafter.config import drafter_config
from eyas.drafter.options import TrainOptions
from eyas.drafter.prediction import (
    Slots,
    forward_tokens,
    memory_terms,
    parameter_counts,
    trained_counts,
)
from eyas.report.table import Line, Part, Table
from eyas.report.text import number, size

if TYPE_CHECKING:
    from eyas.pipeline import Step
    from eyas.recipe import Recipe

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
    total_tokens: int | None = None,
) -> dict[str, Any]:
    """Parameters by part, the trained ones, steps, tokens of a forward, and bytes by term and in all.

    lengths: tokens of the rows, or of as many typical ones. label_share: of the tokens that carry a term; 1 is
    the most that it can be. total_tokens: of all rows, where lengths are not theirs.
    """
    config = drafter_config(options.network, facts, num_aux, draft_vocab_size)
    tokens = forward_tokens(options, lengths, processes)
    slots = Slots.most(tokens, options.ttt_steps, label_share)
    terms = memory_terms(config, options, slots, processes=processes)
    total = sum(lengths) if total_tokens is None else total_tokens
    return {
        "parameters": parameter_counts(config),
        "trained_parameters": sum(trained_counts(config, options).values()),
        "steps": -(-total * options.epochs // options.tokens_per_step),
        "forward_tokens": tokens,
        "memory": terms,
        "memory_bytes": sum(terms.values()),
        "bytes_per_token": sum(terms[name] for name in PER_TOKEN) // max(tokens, 1),
    }


def outline_recipe(
    recipe: Recipe, recipe_file: Path, steps: list[Step], processes: int = 1
) -> dict[str, Any]:
    """The outline of a recipe's training. Tokens are those of the corpus if it is there, else estimates; a row is
    taken to be as long as prompt, answer and cut allow."""
    from .run import outline as outline_run

    facts = read_facts(steps[0].inputs["target"].path)
    merged = next(step for step in steps if step.name == "merge").manifest
    if merged is not None:
        tokens = sum(o.tokens or 0 for o in merged.outputs if o.file == "train.jsonl")
    else:
        stages = outline_run(recipe, recipe_file, steps)["stages"]
        tokens = next(stage["tokens"] for stage in stages if stage["name"] == "train")
    longest = recipe.generation.max_prompt_tokens + recipe.generation.max_new_tokens
    longest = min(longest, recipe.merge.max_seq_len)
    if recipe.training.over_budget == "cut":
        longest = min(longest, recipe.training.tokens_per_step)
    boundaries = recipe.states.boundaries or facts.default_boundaries
    size_of_vocabulary = recipe.vocabulary.size or facts.tokenizer_length
    return outline(
        recipe.training,
        facts,
        len(boundaries),
        size_of_vocabulary,
        [longest],
        processes=processes,
        total_tokens=tokens,
    )


def tables(plan: dict[str, Any]) -> list[Part]:
    """The outline for a terminal."""
    weights = Table("The drafter", ("part", "parameters"))
    for part, count in plan["parameters"].items():
        if count:
            weights.add_row(part, number(count))
    memory = Table("Memory of a process", ("what", "bytes"))
    for term, count in plan["memory"].items():
        memory.add_row(term.replace("_", " "), size(count))
    sentence = (
        f"{number(plan['trained_parameters'])} parameters are trained in some {number(plan['steps'])} steps; a forward "
        f"holds up to {number(plan['forward_tokens'])} tokens at {size(plan['bytes_per_token'])} each, and the peak is "
        f"{size(plan['memory_bytes'])}. training.tokens_per_forward, recompute and head_chunk make it smaller."
    )
    return [weights, memory, Line(sentence)]
