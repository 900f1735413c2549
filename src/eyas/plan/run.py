"""What a recipe will do and cost, said before anything is spent.

Rows are counted, tokens and times are estimates: tokens from bytes and limits, times from operations and
rates that were measured at float32 on one AVX-512 core with a 135M-parameter target. Stages that are
complete cost nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.core.contract import TargetFacts, read_facts
from eyas.recipe import Recipe
from eyas.report.table import Line, Part, Table
from eyas.report.text import duration, number, size
from eyas.sources.dataset import read_dataset
from eyas.states.codecs import BYTES

if TYPE_CHECKING:
    from eyas.pipeline import Step

BYTES_PER_TOKEN = 4.0
"""Of text; a template adds TEMPLATE_TOKENS a row."""
TEMPLATE_TOKENS = 32
ANSWER_SHARE = 0.7
"""Of max_new_tokens that an answer takes on average; 0.68 of 96 in the demo."""
DECODE, PREFILL, TRAIN, ALONE = 31e9, 75e9, 45e9, 4.5e9
"""Operations a CPU second: decoding in batches, prefill, training on short rows, decoding one row alone."""


def outline(recipe: Recipe, recipe_file: Path, steps: list[Step]) -> dict[str, Any]:
    """Rows, tokens, bytes, CPU seconds and minutes of each stage, and the memory of the largest process."""
    facts = read_facts(steps[0].inputs["target"].path)
    rows, prompt_tokens = _rows(recipe, recipe_file)
    answer_tokens = int(rows["all"] * recipe.generation.max_new_tokens * ANSWER_SHARE)
    tokens = prompt_tokens + answer_tokens
    weights = facts.weight_bytes // 2  # parameters, if they are stored in 16 bits
    body = 2 * (weights - facts.vocab_size * facts.hidden_size)  # operations a token without the head
    labels = answer_tokens * rows["train"] / rows["all"]
    work = {
        "generate": (
            body * prompt_tokens / PREFILL + 2 * weights * answer_tokens / DECODE,
            recipe.generation.workers,
        ),
        "extract": (body * tokens / PREFILL, recipe.states.workers),
        "train": (_train_operations(recipe, facts, labels) / TRAIN, 1),
        "bench": (_bench_operations(recipe, weights) / ALONE, recipe.bench.workers),
    }
    per_token = 4 * facts.hidden_size * BYTES[recipe.states.codec]
    disk = {
        "generate": 8 * tokens,
        "tokenize": 8 * tokens,
        "merge": 8 * tokens,
        "extract": per_token * tokens,
    }
    cores = os.cpu_count() or 1
    stages: list[dict[str, Any]] = []
    for step in steps:
        cpu, workers = work.get(step.name, (0.0, 1))
        stages.append(
            {
                "name": step.name,
                "done": step.manifest is not None,
                "rows": rows["train"] if step.name in ("vocab", "train") else rows["all"],
                "tokens": tokens,
                "bytes": int(disk.get(step.name, 0)),
                "cpu_seconds": round(cpu, 1),
                "seconds": round(cpu / min(workers, cores), 1),
            }
        )
    free = shutil.disk_usage(_existing(steps[0].folder)).free
    open_stages: list[dict[str, Any]] = [stage for stage in stages if not stage["done"]]
    return {
        "recipe": recipe.name,
        "stages": stages,
        "seconds": round(sum(stage["seconds"] for stage in open_stages), 1),
        "bytes": sum(stage["bytes"] for stage in open_stages),
        "bytes_free": free,
        "memory_bytes": int(4 * weights * 1.0 + 1.2e9),
    }


def tables(plan: dict[str, Any]) -> list[Part]:
    """The outline for a terminal."""
    table = Table(
        f"What {plan['recipe']} will do (estimates)",
        ("stage", "rows", "tokens", "disk", "CPU", "wall", ""),
        left=(0, 6),
    )
    for stage in plan["stages"]:
        table.add_row(
            stage["name"],
            number(stage["rows"]),
            number(stage["tokens"]),
            size(stage["bytes"]) if stage["bytes"] else "",
            duration(stage["cpu_seconds"]) if stage["cpu_seconds"] else "",
            duration(stage["seconds"]) if stage["seconds"] else "",
            "done" if stage["done"] else "",
        )
    sentence = (
        f"About {duration(plan['seconds'])} on free cores, {size(plan['bytes'])} of disk "
        f"({size(plan['bytes_free'])} free), {size(plan['memory_bytes'])} of memory in the largest process. "
        "It can be stopped at any time and goes on where it was."
    )
    return [table, Line(sentence)]


def _rows(recipe: Recipe, recipe_file: Path) -> tuple[dict[str, int], int]:
    """(rows by role and all together, prompt tokens by their bytes)."""
    rows = {"train": 0, "heldout": 0}
    tokens = 0.0
    for entry in recipe.datasets:
        path = recipe_file.parent / entry.path
        count = len(read_dataset(path, entry.name).conversations)
        kept = int(count * (entry.sample or 1.0))
        kept = min(kept, entry.cap) if entry.cap is not None else kept
        rows[entry.role] += kept
        tokens += kept * (path.stat().st_size / count / BYTES_PER_TOKEN + TEMPLATE_TOKENS)
    return {**rows, "all": rows["train"] + rows["heldout"]}, int(tokens)


def _train_operations(recipe: Recipe, facts: TargetFacts, labels: float) -> float:
    """6 operations a weight and slot for what is trained, 4 for the frozen head, 2 for the teacher's."""
    hidden, kv = facts.hidden_size, facts.num_kv_heads * facts.head_dim
    queries = facts.num_heads * facts.head_dim
    layer = 2 * hidden * (queries + 2 * kv) + queries * hidden + 3 * hidden * facts.intermediate_size
    head = (recipe.vocabulary.size or facts.tokenizer_length) * hidden
    return recipe.training.epochs * recipe.training.ttt_steps * labels * (6 * layer + 6 * head)


def _bench_operations(recipe: Recipe, weights: int) -> float:
    settings = len(recipe.bench.draft_tokens) + 1
    return 2 * weights * recipe.bench.prompts * recipe.bench.max_new_tokens * settings


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.absolute().parent
    return folder
