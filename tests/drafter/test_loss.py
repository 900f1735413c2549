"""Each objective and each weighting by hand on a toy batch, and each gradient by autograd of the definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.drafter.objectives import (
    LossSpec,
    idle_settings,
    lk_alpha,
    lk_lambda,
    read_logits,
    soft_cross_entropy,
)
from eyas.drafter.options import TrainOptions
from eyas.drafter.terms import gates, slot_lives, unlabelled_teachers

LOGITS = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)  # q = (1/4, 3/4)
P = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
CROSS_ENTROPY = 0.5 * (math.log(4) + math.log(4 / 3))
W = math.exp(-3 * 0.75)


def on_toy(objective, *settings_: float) -> tuple[float, list[float]]:
    drafted, ce, q = read_logits(LOGITS.clone(), P)
    assert drafted.tolist() == [1]
    torch.testing.assert_close(q, torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    loss, gradient = objective(ce, q, P, *settings_)
    return float(loss), gradient[0].tolist()


def test_cross_entropy_by_hand() -> None:
    loss, gradient = on_toy(soft_cross_entropy)
    assert loss == pytest.approx(CROSS_ENTROPY) == pytest.approx(0.836988, abs=1e-6)
    assert gradient == pytest.approx([-0.25, 0.25])


def test_lk_alpha_by_hand() -> None:
    """alpha = min(1/4, 1/2) + min(3/4, 1/2) = 3/4; m = (1, 0), s = 1/4; d alpha / d l = (3/16, -3/16)."""
    loss, gradient = on_toy(lk_alpha)
    assert loss == pytest.approx(-math.log(0.75))
    assert gradient == pytest.approx([-0.25, 0.25])


def test_lk_lambda_by_hand() -> None:
    loss, gradient = on_toy(lk_lambda, 1.0, 3.0)
    assert loss == pytest.approx(W * CROSS_ENTROPY + (1 - W) * 0.25) == pytest.approx(0.311868, abs=1e-6)
    slope = W * 0.25 + (1 - W) * 3 / 16
    assert gradient == pytest.approx([-slope, slope])


def defined(name: str, logits: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The formulas as they are written, for autograd."""
    q = logits.softmax(-1)
    ce = -(p * q.log()).sum(-1)
    alpha = torch.minimum(p, q).sum(-1)
    if name == "cross_entropy":
        return ce
    if name == "lk_alpha":
        return -alpha.log()
    w = 0.9 * torch.exp(-2.0 * alpha).detach()
    return w * ce + (1 - w) * (1 - alpha)


@pytest.mark.parametrize("name", ["cross_entropy", "lk_alpha", "lk_lambda"])
@given(
    terms=st.integers(1, 6),
    vocabulary=st.integers(2, 40),
    spread=st.floats(0.1, 6.0),
    seed=st.integers(0, 999),
)
@settings(max_examples=30, deadline=None)
def test_values_and_gradients_are_those_of_the_definition(
    name: str, terms: int, vocabulary: int, spread: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, other = (
        spread * torch.randn(terms, vocabulary, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    p = other.softmax(-1)
    leaf = logits.clone().requires_grad_()
    expected = defined(name, leaf, p)
    expected.sum().backward()
    spec = LossSpec(objective=name, lk_scale=0.9, lk_decay=2.0)
    drafted, ce, q = read_logits(logits, p)
    assert torch.equal(drafted, logits.argmax(-1))
    torch.testing.assert_close(ce, defined("cross_entropy", logits, p))
    loss, gradient = spec.function()(ce, q, p)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("name", ["cross_entropy", "lk_alpha", "lk_lambda"])
def test_a_draft_that_is_surely_wrong_gives_numbers(name: str) -> None:
    """q is 0 in float32 wherever p is not; a NaN here would end a run."""
    _, ce, q = read_logits(torch.tensor([[200.0, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0]]))
    loss, gradient = LossSpec(objective=name).function()(ce, q, torch.tensor([[0.0, 1.0, 0.0]]))
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


def test_equal_logits_draft_the_lower_id() -> None:
    drafted, _, _ = read_logits(torch.zeros(3, 50), torch.full((3, 50), 0.02))
    assert drafted.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("eyas", [1 / 3, 0.8 / 2, 0.0]),
        ("eagle", [1 / 10, 0.8 / 10, 0.0]),
        ("specforge", [1 / 10, 0.8 / 10, 0.0]),
        ("automodel", [1 / 3 / 2.44, 0.8 / 2 / 2.44, 0.0]),
    ],
)
def test_weights_by_hand(preset: str, expected: list[float]) -> None:
    """Ten positions, three terms of step 0, two of step 1, none of step 2; 1 + 0.8 + 0.64 = 2.44."""
    assert LossSpec(preset=preset).shares([3, 2, 0], 10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("preset", "labels"),
    [
        ("eyas", [[6, 7, 8], [7, 8], [8]]),
        ("eagle", [[7, 8, 9, 10], [7, 8, 9, 10], [7, 8, 9, 10]]),
        ("specforge", [[7, 8, 9, 10], [7, 8, 9, 10], [7, 8, 9, 10]]),
        ("automodel", [[6, 7, 8, 9], [6, 7, 8, 9], [6, 7, 8, 9]]),
    ],
)
def test_gates_by_hand(preset: str, labels: list[list[int]]) -> None:
    """Twelve tokens, the answer on 5 to 8: which labels each step trains."""
    mask = torch.tensor([0] * 5 + [1] * 4 + [0] * 3)
    found = [
        (torch.nonzero(open_T).flatten() + 2 + k).tolist() for k, open_T in enumerate(gates(mask, 3, preset))
    ]
    assert found == labels
    lives = slot_lives(mask, 3, preset)
    for k, open_T in enumerate(gates(mask, 3, preset)):
        assert (lives[open_T] > k).all(), "a slot with a term must be computed"


def test_presets_ask_for_teachers_past_the_end_of_a_turn() -> None:
    mask = torch.tensor([0] * 5 + [1] * 4 + [0] * 3)
    assert unlabelled_teachers(mask, 3, "eyas").tolist() == []
    assert unlabelled_teachers(mask, 3, "automodel").tolist() == [8]
    assert unlabelled_teachers(mask, 3, "eagle").tolist() == [8, 9]
    assert unlabelled_teachers(torch.ones(6), 3, "eagle").tolist() == [], "the last state may be absent"


def test_settings_that_nothing_reads_are_named() -> None:
    assert idle_settings(TrainOptions()) == []
    assert idle_settings(TrainOptions(lk_decay=1.0)) == ["lk_decay"]
    assert idle_settings(TrainOptions(lk_decay=1.0, objective="lk_lambda")) == []
