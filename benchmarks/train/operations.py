"""Operations of a training step, counted from shapes: 2 for each multiply-add of a matrix product that the
mathematics asks for. Norms, softmaxes, the optimiser and whatever is computed twice are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from eyas.drafter.batch import Batch
from eyas.drafter.config import DrafterConfig


@dataclass(frozen=True)
class Operations:
    """Of one step: all, and those of the attention scores and their mixing alone."""

    total: float
    attention: float


def count(config: DrafterConfig, batch: Batch, train_head: bool) -> Operations:
    """Forward and backward. A product costs its forward again for each of the two gradients; fc needs none with
    respect to its input, a frozen head none with respect to its weight, the teacher none at all."""
    c = config
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    slots, first = len(batch.ids_N), batch.slot_counts[0]
    later = sum(batch.slot_counts) - first
    fuse = 2 * slots * c.num_aux * c.target_hidden_size * c.hidden_size
    layer = 2 * (2 * c.hidden_size) * (2 * keys * (slots + later) + queries * (first + later))
    layer += 2 * (first + later) * (queries * c.hidden_size + 3 * c.hidden_size * c.intermediate_size)
    head = 2 * sum(batch.term_counts) * c.hidden_size * c.draft_vocab_size
    teacher = 2 * len(batch.last_PG) * c.target_hidden_size * c.draft_vocab_size
    attention = 4 * queries * sum(_pairs(batch, k) for k in range(len(batch.steps)))
    total = 2 * fuse + 3 * layer + (3 if train_head else 2) * head + teacher + 3 * attention
    return Operations(total, 3 * attention)


def _pairs(batch: Batch, k: int) -> int:
    """(query, key) pairs of step k: causal over step-0 keys, and k own-slot keys a query."""
    step = batch.steps[k]
    causal = sum(
        (run.stop - run.start) * (run.own_key - run.first_key)
        + (run.stop - run.start) * (run.stop - run.start + 1) // 2
        for run in step.runs
    )
    return causal + k * len(step)
