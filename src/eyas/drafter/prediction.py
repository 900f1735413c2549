"""Parameters and memory of a training run, from its options and the target's facts, before anything is built.

Each term is a formula over the shapes that the forward pass keeps for the backward pass; the test beside it
compares them with what autograd really keeps. Bytes are those of float32 unless said. Nothing here is square in
the length of a row, and no term holds a logit for every token: `head_chunk` bounds those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .config import DrafterConfig
from .options import TrainOptions

FLOAT, INT = 4, 8
LIBRARIES = 350_000_000
"""Resident bytes of a process that has imported torch and transformers and done nothing; measured, on a CPU."""

HOLES = 0.2
"""Of the activations' bytes, held by the C library's allocator in holes after some steps; measured, on a CPU."""


@dataclass(frozen=True)
class Slots:
    """Sizes of one forward: N step-0 slots, |S_k| of each step, P teacher positions, C terms in all."""

    step_0: int
    steps: tuple[int, ...]
    teachers: int
    terms: int

    @classmethod
    def most(cls, tokens: int, num_steps: int, label_share: float = 1.0) -> Slots:
        """Of a forward of so many tokens, if every slot whose label is one is worked on and is a term."""
        labels = int(tokens * label_share)
        return cls(tokens, (labels,) * num_steps, labels, labels * num_steps)


def parameter_counts(config: DrafterConfig) -> dict[str, int]:
    """Weights of each part of the drafter's file; they add up to config.num_parameters."""
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    keys, fused = config.num_kv_heads * config.head_dim, config.num_aux * config.target_hidden_size
    return {
        "fc": fused * hidden,
        "attention": 2 * hidden * (queries + 2 * keys) + queries * hidden,
        "mlp": 3 * hidden * config.intermediate_size,
        "norms": 4 * hidden + fused * (config.norm_before_fc + config.fc_norm),
        "head": config.draft_vocab_size * hidden,
        "embedding": config.vocab_size * hidden if config.has_own_embedding else 0,
    }


def trained_counts(config: DrafterConfig, options: TrainOptions) -> dict[str, int]:
    """Of those, what the optimiser moves."""
    counts = parameter_counts(config)
    return counts if options.train_head else {**counts, "head": 0}


def memory_terms(
    config: DrafterConfig,
    options: TrainOptions,
    slots: Slots,
    embedding_bytes: int = 2,
    processes: int = 1,
) -> dict[str, int]:
    """Bytes of each part of a process's peak, by name; their sum is the peak. A batch counts twice, since its rows
    are there while it is put together.

    embedding_bytes: of one number of the target's embedding as its files hold it. processes: of a job with
    training.parallel fsdp, over which weights, gradients and optimiser state of what is trained are spread.
    """
    trained = trained_counts(config, options)
    shards = processes if options.parallel == "fsdp" else 1
    frozen = config.num_parameters - sum(trained.values())
    shared = (
        0 if config.has_own_embedding else config.vocab_size * config.target_hidden_size * embedding_bytes
    )
    return {
        "libraries": LIBRARIES,
        "weights": FLOAT * (sum(trained.values()) + frozen),
        "shared_embedding": shared,
        "gradients": FLOAT * sum(trained.values()),
        "optimizer": FLOAT * optimizer_numbers(trained, options) // shards,
        "teacher_head": FLOAT * config.draft_vocab_size * config.target_hidden_size,
        "batch": 2 * batch_bytes(config, slots),
        "activations": FLOAT * activation_numbers(config, options, slots),
        "workspace": workspace_bytes(config, slots),
        "allocator": int(HOLES * FLOAT * activation_numbers(config, options, slots)),
        "head_chunk": head_chunk_bytes(config, options, slots),
        "final_walk": walk_bytes(config, embedding_bytes),
    }


def optimizer_numbers(trained: dict[str, int], options: TrainOptions) -> int:
    """Two averages of the gradient for each weight, under Muon one for the matrices of fc and the layer; and the
    average of the weight itself where that is asked for."""
    turned = sum(trained[part] for part in ("fc", "attention", "mlp")) if options.optimizer == "muon" else 0
    return (3 if options.average else 2) * sum(trained.values()) - turned


def batch_bytes(config: DrafterConfig, slots: Slots) -> int:
    """Aux states of the step-0 slots, last states of the teacher positions, and ids and places."""
    states = slots.step_0 * config.num_aux + slots.teachers
    places = 2 * slots.step_0 + 6 * sum(slots.steps) + slots.teachers
    return FLOAT * states * config.target_hidden_size + INT * places


def activation_numbers(config: DrafterConfig, options: TrainOptions, slots: Slots) -> int:
    """Numbers that autograd keeps, the batch's own left out.

    A step-0 slot keeps hidden, embedding, their norms side by side, and its key and value; a slot of a step its
    layer input, query, mixed values and residuals, and the four inner rows of SwiGLU unless recomputed; from step
    1 on embedding and fed-back hidden as well, and the keys and values of the steps so far at its own slot. An
    embedding that is trained is kept once more.
    """
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    keys, turn = config.num_kv_heads * config.head_dim, 2 * config.head_dim
    fused = config.num_aux * config.target_hidden_size
    fed_norms = 2 * fused * (config.fc_norm + config.norm_before_fc)
    own = hidden if config.has_own_embedding else 0
    total = slots.step_0 * (5 * hidden + own + 2 * keys + turn + 1 + fed_norms)
    for k, number in enumerate(slots.steps):
        row = 2 * hidden + 2 * queries + turn + config.num_heads + 2 * k * keys
        row += hidden if k == 0 else (3 + config.norm_output) * hidden + own
        if not options.recompute:
            row += 4 * config.intermediate_size + (2 if k == 0 else 3) * hidden
        total += number * row
    return total + slots.terms * (3 * hidden + 3)


def workspace_bytes(config: DrafterConfig, slots: Slots) -> int:
    """What the backward pass of one step's layer holds for a moment: the gradients of SwiGLU's three inner rows and
    of four rows of the residual stream."""
    return FLOAT * max(slots.steps, default=0) * (3 * config.intermediate_size + 4 * config.hidden_size)


def walk_bytes(config: DrafterConfig, embedding_bytes: int) -> int:
    """The target's full head, read once training has ended for the coverage of the draft vocabulary, a block of it in
    float32, and three blocks of logits (coverage.py)."""
    head = config.vocab_size * config.target_hidden_size * embedding_bytes
    ids, positions = min(8192, config.vocab_size), 256
    return head + FLOAT * ids * (config.target_hidden_size + 3 * positions)


def head_chunk_bytes(config: DrafterConfig, options: TrainOptions, slots: Slots) -> int:
    """Logits of one chunk of teacher positions: the teacher's, and for each of its up to K terms the teacher's again,
    the drafter's, their distribution and one more while they are worked on; and the gradient of a trained head."""
    positions = min(options.head_chunk, slots.teachers)
    rows = positions * (1 + 4 * len(slots.steps))
    head = config.draft_vocab_size * config.hidden_size if options.train_head else 0
    return FLOAT * (rows * config.draft_vocab_size + head)


def forward_tokens(options: TrainOptions, lengths: Sequence[int], processes: int = 1) -> int:
    """Most tokens of one forward: the budget, or the longest row where it is over it."""
    whole = -(-options.tokens_per_step // processes)
    budget = min(options.tokens_per_forward or whole, whole)
    return max(budget, max(lengths, default=0))
