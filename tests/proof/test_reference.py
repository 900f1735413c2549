"""The packed, chunked, wasteless loss against plain float64 loops: value and every gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.drafter.batch import make_batch
from eyas.drafter.loss import batch_loss
from eyas.drafter.objectives import LossSpec
from eyas.drafter.rope import Rotary
from eyas.drafter.unroll import unroll
from reference import Reference
from tiny import tiny_drafter, tiny_row, tiny_teacher

DECAY = 0.8


def agree(masks: list[list[int]], steps: int, seed: int, chunk: int = 128, **changes: object) -> None:
    drafter = tiny_drafter(seed, **changes)
    teacher, head = tiny_teacher(drafter, seed + 1)
    rows = [tiny_row(mask, head, seed + 2 + i) for i, mask in enumerate(masks)]
    weights = {name: p.detach().clone().requires_grad_() for name, p in drafter.named_parameters()}
    reference = Reference(weights, drafter.config, drafter.target_ids_R.tolist(), head)
    plain = [
        {
            "ids": r.input_ids_T.tolist(),
            "mask": r.loss_mask_T.int().tolist(),
            "aux": r.aux_TAH,
            "last": r.last_TH,
        }
        for r in rows
    ]
    torch.set_default_dtype(torch.float64)
    try:
        expected, counts = reference.loss(plain, steps, DECAY)
    finally:
        torch.set_default_dtype(torch.float32)
    batch = make_batch(rows, drafter.t2d, steps)
    assert batch.term_counts == counts, (
        "the terms are not those of the design: slots are trained that serving never uses"
    )
    if not any(counts):
        return
    expected.backward()
    outputs = unroll(drafter, Rotary(drafter.config), batch)
    found = batch_loss(drafter, outputs, batch, teacher, LossSpec(step_decay=DECAY, chunk=chunk), counts)
    found.loss.backward()
    torch.testing.assert_close(found.loss, expected, rtol=1e-10, atol=1e-12)
    for name, parameter in drafter.named_parameters():
        if not parameter.requires_grad:
            continue
        torch.testing.assert_close(
            parameter.grad,
            weights[name].grad,
            rtol=1e-8,
            atol=1e-11,
            msg=lambda text, n=name: f"gradient of {n}: {text}",
        )


@pytest.mark.parametrize("steps", range(1, 8))
def test_loss_and_gradients_equal_the_loops_for_every_number_of_steps(steps: int) -> None:
    agree([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1]], steps, seed=steps)


@given(
    masks=st.lists(st.lists(st.sampled_from([0, 1, 1]), min_size=2, max_size=12), min_size=1, max_size=4),
    steps=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    chunk=st.sampled_from([1, 3, 128]),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_equal_the_loops_for_any_masks_and_packing(
    masks: list[list[int]], steps: int, seed: int, chunk: int
) -> None:
    agree(masks, steps, seed, chunk)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_before_residual": True},
        {"norm_output": True},
        {"logit_scale": 0.25},
        {"soft_cap": 2.0, "logit_scale": 1.5},
        {"num_kv_heads": 4},
        {"num_kv_heads": 1},
    ],
    ids=str,
)
def test_loss_and_gradients_equal_the_loops_for_every_shape_option(changes: dict[str, object]) -> None:
    agree([[0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1]], 3, seed=5, **changes)
