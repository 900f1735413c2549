from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eyas.core.errors import FaultFound
from eyas.engines.hf import HfTarget
from eyas.states.preflight import preflight

PROMPTS = [[65, 66, 67, 68, 69, 70, 71, 72], [80, 81, 82, 83, 84, 85, 86]]
BOUNDARIES = (2, 4, 5)


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> HfTarget:
    return HfTarget(tiny_target)


def test_true_states_pass(target: HfTarget) -> None:
    preflight(target, (0, 2, 5, 8), PROMPTS)


@pytest.mark.parametrize("offset", [-1, 1])
def test_boundaries_off_by_one_are_refused(target: HfTarget, offset: int) -> None:
    def shifted(rows: Sequence[Sequence[int]], boundaries: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return target.states(rows, [b + offset for b in boundaries])

    with pytest.raises(FaultFound, match="boundary 2"):
        preflight(target, BOUNDARIES, PROMPTS, shifted)


def test_one_wrong_boundary_among_right_ones_is_refused(target: HfTarget) -> None:
    def shifted(rows: Sequence[Sequence[int]], boundaries: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return target.states(rows, [*boundaries[:-1], boundaries[-1] + 1])

    with pytest.raises(FaultFound, match="boundary 5"):
        preflight(target, BOUNDARIES, PROMPTS, shifted)


def test_a_last_state_without_the_final_norm_is_refused(target: HfTarget) -> None:
    def unnormed(rows: Sequence[Sequence[int]], boundaries: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        whole = target.states(rows, [*boundaries, len(target.layers)])
        return [(aux[:, : -aux.shape[1] // 4], aux[:, -aux.shape[1] // 4 :]) for aux, _ in whole]

    with torch.inference_mode():
        target.decoder.norm.weight.copy_(torch.linspace(-2, 2, 32))  # a norm that does something
    with pytest.raises(FaultFound, match="last hidden state"):
        preflight(target, BOUNDARIES, PROMPTS, unnormed)


def test_states_of_the_row_before_are_refused(target: HfTarget) -> None:
    def late(rows: Sequence[Sequence[int]], boundaries: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        return [(aux.roll(1, 0), last.roll(1, 0)) for aux, last in target.states(rows, boundaries)]

    with pytest.raises(FaultFound):
        preflight(target, BOUNDARIES, PROMPTS, late)
