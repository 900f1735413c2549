"""fc reads raw aux states, so its steps are a share of the others'."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from eyas.drafter.optimizer import Optimizer
from eyas.drafter.options import TrainOptions
from tiny import tiny_drafter


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_fc_moves_by_its_share_of_the_rate(kind: str) -> None:
    moved = {}
    for share in (1.0, 0.1):
        drafter = tiny_drafter(dtype=torch.float32)
        before = {name: p.detach().clone() for name, p in drafter.named_parameters()}
        optimizer = Optimizer(drafter, TrainOptions(optimizer=kind, fc_rate=share))
        for number, (_, parameter) in enumerate(drafter.named_parameters()):
            if parameter.requires_grad:
                generator = torch.Generator().manual_seed(number)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(1e-3)
        moved[share] = {name: (p - before[name]).abs().mean() for name, p in drafter.named_parameters()}
    for name, whole in moved[1.0].items():
        expected = 0.1 * whole if name == "fc.weight" else whole
        torch.testing.assert_close(moved[0.1][name], expected, rtol=1e-2, atol=1e-9)


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(Exception, match="fc_rate"):
        dataclasses.replace(TrainOptions(), fc_rate=0.0)
