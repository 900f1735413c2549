"""What is predicted of parameters and memory is what is measured."""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch

from eyas.drafter.batch import make_batch
from eyas.drafter.config import DrafterConfig
from eyas.drafter.loss import TeacherHead
from eyas.drafter.network import Drafter
from eyas.drafter.optimizer import Optimizer
from eyas.drafter.options import TrainOptions
from eyas.drafter.prediction import (
    Slots,
    activation_numbers,
    batch_bytes,
    forward_tokens,
    head_chunk_bytes,
    memory_terms,
    parameter_counts,
    trained_counts,
)
from eyas.drafter.step import TrainStep
from eyas.states.store import StateRow

OPTIONS = TrainOptions(ttt_steps=3, threads=1)
SHAPE = {
    "hidden_size": 48,
    "target_hidden_size": 48,
    "intermediate_size": 100,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 14,
    "num_aux": 3,
    "vocab_size": 500,
    "draft_vocab_size": 70,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "max_position_embeddings": 4096,
}


def made(options: TrainOptions, tokens: int = 256, **changes: object) -> tuple[TrainStep, object, Slots]:
    config = DrafterConfig(**{**SHAPE, **changes})
    drafter = Drafter(config)
    drafter.set_vocabulary(torch.arange(config.draft_vocab_size))
    drafter.lm_head.weight.requires_grad_(options.train_head)
    teacher = TeacherHead(torch.randn(config.draft_vocab_size, config.target_hidden_size), None, 1.0, None)
    mask = torch.arange(tokens) >= tokens // 4
    rows = [
        StateRow(
            id=str(i),
            dataset="d",
            flags=[],
            input_ids_T=torch.randint(0, 500, (tokens,)),
            loss_mask_T=mask,
            teacher_T=torch.randint(0, config.draft_vocab_size, (tokens,)),
            aux_TAH=torch.randn(tokens, 3 * config.target_hidden_size),
            last_TH=torch.randn(tokens, config.target_hidden_size),
        )
        for i in range(2)
    ]
    batch = make_batch(rows, drafter.t2d, options.ttt_steps)
    slots = Slots(len(batch.ids_N), tuple(batch.slot_counts), len(batch.argmax_P), sum(batch.term_counts))
    return TrainStep(drafter, teacher, options), batch, slots


def kept_bytes(step: TrainStep, batch: object) -> int:
    """Bytes of all storages that autograd keeps after the forward, weights and the batch's own states left out."""
    known = {p.untyped_storage().data_ptr() for p in step.parameters()}
    known |= {batch.aux_NAG.untyped_storage().data_ptr(), batch.last_PG.untyped_storage().data_ptr()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = step(batch, batch.term_counts, batch.num_tokens)
    assert result.loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"intermediate_size": 400},
        {"num_kv_heads": 4, "head_dim": 30},
        {"fc_norm": True},
        {"norm_before_fc": True},
        {"norm_output": True},
        {"hidden_size": 32},
    ],
    ids=str,
)
@pytest.mark.parametrize("recompute", [False, True])
def test_predicted_activations_are_those_that_autograd_keeps(
    changes: dict[str, object], recompute: bool
) -> None:
    options = dataclasses.replace(OPTIONS, recompute=recompute, train_head="hidden_size" in changes)
    step, batch, slots = made(options, **changes)
    predicted = 4 * activation_numbers(step.drafter.config, options, slots)
    head = 4 * step.drafter.lm_head.weight.numel() if options.train_head else 0
    assert predicted == pytest.approx(kept_bytes(step, batch) - head, rel=0.05), (
        "what the forward keeps has changed: mend the formula, or users run out of memory on a plan that fits"
    )


def test_activations_grow_with_tokens_and_not_with_their_square() -> None:
    kept = []
    for tokens in (128, 256, 512):
        step, batch, _ = made(OPTIONS, tokens)
        kept.append(kept_bytes(step, batch))
    assert kept[2] - kept[1] == pytest.approx(2 * (kept[1] - kept[0]), rel=0.02)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("changes", [{}, {"hidden_size": 32}, {"fc_norm": True}], ids=str)
def test_predicted_weights_gradients_and_state_are_what_they_take(
    changes: dict[str, object], optimizer: str
) -> None:
    options = dataclasses.replace(OPTIONS, optimizer=optimizer, train_head="hidden_size" in changes)
    step, batch, slots = made(options, **changes)
    drafter, config = step.drafter, step.drafter.config
    terms = memory_terms(config, options, slots)
    assert sum(parameter_counts(config).values()) == config.num_parameters
    trained = [p for p in drafter.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == sum(trained_counts(config, options).values())
    optimiser = Optimizer(drafter, options)
    step(batch, batch.term_counts, batch.num_tokens).loss.backward()
    assert terms["gradients"] == sum(p.grad.nbytes for p in trained)
    optimiser.step(1e-3)
    state = sum(t.nbytes for name, t in optimiser.state().items() if not name.endswith("/step"))
    assert terms["optimizer"] == state
    frozen_embedding = 0 if config.has_own_embedding else drafter.embed_tokens.weight.nbytes
    assert terms["weights"] == sum(p.nbytes for p in drafter.parameters()) - frozen_embedding
    assert terms["shared_embedding"] == frozen_embedding // 2, "bfloat16 in the target's files"
    held = sum(
        getattr(batch, name).nbytes for name in ("aux_NAG", "ids_N", "positions_N", "last_PG", "argmax_P")
    )
    for part in batch.steps:
        held += sum(t.nbytes for t in vars(part).values() if isinstance(t, torch.Tensor))
    assert batch_bytes(config, slots) == held


def test_the_head_holds_the_logits_of_one_chunk_and_no_more() -> None:
    """Peak of allocations while the head works, measured by the profiler, against the prediction."""
    small, large = (dataclasses.replace(OPTIONS, head_chunk=chunk) for chunk in (16, 64))
    peaks = []
    for options in (small, large):
        step, batch, _ = made(options, draft_vocab_size=490)
        outputs = [torch.randn(n, 48, requires_grad=True) for n in batch.slot_counts]
        peaks.append(_peak(step, outputs, batch))
    config = DrafterConfig(**{**SHAPE, "draft_vocab_size": 490})
    slots = Slots.most(1000, 3)
    predicted = head_chunk_bytes(config, large, slots) - head_chunk_bytes(config, small, slots)
    assert peaks[1] - peaks[0] == pytest.approx(predicted, rel=0.1)


def _peak(step: TrainStep, outputs: list[torch.Tensor], batch: object) -> int:
    from eyas.drafter.loss import batch_loss

    gc.collect()
    with torch.profiler.profile(
        profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
    ) as profile:
        batch_loss(step.drafter, outputs, batch, step.teacher, step.spec, batch.term_counts, batch.num_tokens)
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def test_a_forward_is_as_long_as_its_budget_or_the_longest_row() -> None:
    options = dataclasses.replace(OPTIONS, tokens_per_step=4096)
    assert forward_tokens(options, [10, 900]) == 4096
    assert forward_tokens(options, [10, 900], processes=4) == 1024
    assert forward_tokens(dataclasses.replace(options, tokens_per_forward=512), [10, 900]) == 900
    assert forward_tokens(dataclasses.replace(options, tokens_per_forward=512), [10, 90]) == 512


def test_shards_hold_their_part_of_the_state() -> None:
    options = dataclasses.replace(OPTIONS, parallel="fsdp")
    config, slots = DrafterConfig(**SHAPE), Slots.most(100, 3)
    alone, four = (memory_terms(config, options, slots, processes=n) for n in (1, 4))
    assert four["optimizer"] == alone["optimizer"] // 4
    assert four["activations"] == alone["activations"]
