"""The wasteless loss against the way that other trainers compute: every slot, rolled ids, targets and masks.

For the design's own gate this proves that slots without a term are spared at no change of loss or gradient.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_packed import fully_unrolled

from eyas.drafter.batch import make_batch
from eyas.drafter.loss import batch_loss
from eyas.drafter.objectives import LossSpec
from eyas.drafter.options import TrainOptions
from eyas.drafter.rope import Rotary
from eyas.drafter.target_weights import TargetWeights
from eyas.drafter.training_rows import training_rows
from eyas.drafter.unroll import unroll
from eyas.states.store import StateStore
from tiny import VOCAB, tiny_drafter, tiny_row, tiny_teacher, write_extract, write_target

STEPS = 3
MASK = [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0]


def rolled(x: torch.Tensor, by: int) -> torch.Tensor:
    """To the left, zeros behind."""
    return torch.cat([x[by:], torch.zeros_like(x[:by])])


def gate(mask: torch.Tensor, k: int, preset: str) -> torch.Tensor:
    if preset == "automodel":
        return rolled(mask, 1 + k)
    if preset == "eyas":
        return torch.stack([rolled(mask, 1 + j) for j in range(k + 2)]).prod(0)
    return rolled(mask, k)


def loss_of_others(drafter, row, head: torch.Tensor, preset: str) -> torch.Tensor:
    outputs = fully_unrolled(drafter, row.input_ids_T, row.aux_TAH, STEPS)
    full = row.last_TH @ head.T
    mask = torch.tensor(MASK, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for k, hidden in enumerate(outputs):
        target = rolled(full, 1 + k)
        trained = gate(mask, k, preset) * drafter.t2d[target.argmax(-1)]
        p = target[:, drafter.target_ids_R].softmax(-1)
        each = -(p * drafter.logits(hidden).log_softmax(-1)).sum(-1) * trained
        if preset == "automodel":
            total = total + 0.8**k / (1 + 0.8 + 0.64) * each.sum() / trained.sum()
        elif preset == "eyas":
            total = total + 0.8**k * each.sum() / trained.sum()
        else:
            total = total + 0.8**k * each.mean()
    return total


@pytest.mark.parametrize("preset", ["eyas", "eagle", "specforge", "automodel"])
def test_loss_and_gradients_are_those_of_the_full_computation(tmp_path: Path, preset: str) -> None:
    source = write_target(tmp_path / "target")
    weights = TargetWeights(source.path)
    drafter = tiny_drafter(draft_vocab_size=VOCAB - 6)
    teacher, _ = tiny_teacher(drafter)
    head = weights.head()
    row = tiny_row(MASK, head.double())
    rows = [tiny_row(MASK, head, 2)]
    store = StateStore(write_extract(tmp_path / "e", rows, rows).path)
    row = training_rows(store, weights, TrainOptions(ttt_steps=STEPS, preset=preset))[0]
    row = type(row)(**{**vars(row), "aux_TAH": row.aux_TAH.double(), "last_TH": row.last_TH.double()})
    teacher = type(teacher)(head.double()[drafter.target_ids_R], None, 1.0, None)
    expected = loss_of_others(drafter, row, head.double(), preset)
    gradients = torch.autograd.grad(expected, [p for p in drafter.parameters() if p.requires_grad])
    batch = make_batch([row], drafter.t2d, STEPS, preset)
    outputs = unroll(drafter, Rotary(drafter.config), batch)
    found = batch_loss(
        drafter, outputs, batch, teacher, LossSpec(preset=preset), batch.term_counts, batch.num_tokens
    )
    torch.testing.assert_close(found.loss, expected, rtol=1e-10, atol=1e-12)
    found.loss.backward()
    trained = [(name, p) for name, p in drafter.named_parameters() if p.requires_grad]
    for (name, parameter), gradient in zip(trained, gradients, strict=True):
        torch.testing.assert_close(
            parameter.grad, gradient, rtol=1e-8, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
        )
