"""The averaged drafter: what is walked and exported with training.average."""

from __future__ import annotations

import pytest
import torch

from eyas.drafter.optimizer import Optimizer
from eyas.drafter.options import TrainOptions
from tiny import tiny_drafter


def trained(optimizer: Optimizer, drafter: torch.nn.Module, steps: int) -> list[torch.Tensor]:
    """fc after each step, under gradients that differ from step to step."""
    seen = []
    for step in range(steps):
        for number, parameter in enumerate(drafter.parameters()):
            if parameter.requires_grad:
                generator = torch.Generator().manual_seed(100 * step + number)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(1e-2)
        seen.append(drafter.fc.weight.detach().clone())
    return seen


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_average_is_the_exponential_one_of_the_weights(kind: str) -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    optimizer = Optimizer(drafter, TrainOptions(average=0.9, optimizer=kind))
    seen = trained(optimizer, drafter, 5)
    expected = seen[0]
    for weight in seen[1:]:
        expected = 0.9 * expected + 0.1 * weight
    torch.testing.assert_close(optimizer.averages()["fc.weight"], expected)


def test_the_average_survives_a_checkpoint() -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    optimizer = Optimizer(drafter, TrainOptions(average=0.9))
    trained(optimizer, drafter, 3)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    again = Optimizer(drafter, TrainOptions(average=0.9))
    again.load(state)
    assert all(torch.equal(again.averages()[name], tensor) for name, tensor in optimizer.averages().items())


def test_no_average_is_kept_where_none_is_asked_for() -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    optimizer = Optimizer(drafter, TrainOptions())
    trained(optimizer, drafter, 2)
    assert optimizer.averages() == {}, "memory for an average that nobody reads"
