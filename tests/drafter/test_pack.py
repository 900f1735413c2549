"""Packing: each row once, budgets kept, order a function of seed and epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.drafter.batch import make_batch
from eyas.drafter.options import TrainOptions
from eyas.drafter.pack import epoch_order, pack_epoch
from eyas.drafter.terms import term_counts
from eyas.drafter.training_rows import training_rows
from eyas.states.store import StateStore
from tiny import HIDDEN, VOCAB, tiny_row, write_extract

NO_TARGET = cast(Any, None)
"""The design's gate asks nothing of the target."""

lengths = st.lists(st.integers(1, 300), max_size=120)


@given(lengths, st.integers(50, 400), st.integers(0, 5))
def test_every_row_is_in_one_step_and_no_step_of_several_rows_is_over_the_budget(
    rows: list[int], budget: int, epoch: int
) -> None:
    steps = pack_epoch(rows, budget, 3, epoch)
    assert sorted(row for step in steps for row in step) == list(range(len(rows)))
    for step in steps:
        assert len(step) == 1 or sum(rows[row] for row in step) <= budget


def test_order_depends_on_seed_and_epoch_alone() -> None:
    assert epoch_order(50, 3, 1) == epoch_order(50, 3, 1)
    assert epoch_order(50, 3, 1) != epoch_order(50, 3, 2)
    assert epoch_order(50, 3, 1) != epoch_order(50, 4, 1)
    assert sorted(epoch_order(50, 3, 1)) == list(range(50))


def test_no_row_waits_longer_than_its_turn() -> None:
    order = epoch_order(500, 1, 0)
    for number, step in enumerate(pack_epoch([100] * 500, 400, 1, 0)):
        assert min(order.index(row) for row in step) == 4 * number


def chat_lengths(number: int = 4000) -> list[int]:
    """Lognormal lengths cut at 8,192: the spread (0.775) and the medians of nine real chat and reasoning sets
    of 1,300 to 4,800 tokens on average, in the shares that they have of 37,312 rows."""
    shares = {1300: 2000, 1670: 9998, 3650: 2932, 3045: 3383, 4812: 1891, 4687: 2112, 1863: 5957, 1926: 9039}
    generator = torch.Generator().manual_seed(0)
    lengths = []
    for mean, rows in shares.items():
        drawn = 0.8 * mean * torch.exp(0.775 * torch.randn(number * rows // 37312, generator=generator))
        lengths += drawn.clamp(24, 8192).int().tolist()
    return lengths


@pytest.mark.parametrize("budget", [8192, 16384, 32768])
def test_at_least_98_percent_of_the_budget_is_used_on_lengths_like_those_of_real_sets(budget: int) -> None:
    rows = chat_lengths()
    steps = pack_epoch(rows, budget, 42, 0)
    filled = sum(rows) / (len(steps) * budget)
    assert filled >= 0.98, f"{1 - filled:.1%} of every step is empty"


def test_rows_over_the_budget_are_cut_and_counted_or_left_whole(tmp_path: Path) -> None:
    head = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0))
    rows = [tiny_row([0, 0, *[1] * n], head, n, f"r{n}") for n in (4, 9, 20)]
    store = StateStore(write_extract(tmp_path / "extract", rows, rows[:1]).path)
    whole = training_rows(store, NO_TARGET, TrainOptions(tokens_per_step=10))
    assert whole.lengths == [6, 11, 22]
    assert whole.cuts == {"rows": 0, "tokens": 0}
    cut = training_rows(store, NO_TARGET, TrainOptions(tokens_per_step=10, over_budget="cut"))
    assert cut.lengths == [6, 10, 10]
    assert cut.cuts == {"rows": 2, "tokens": 13}
    assert [len(cut[i]) for i in range(3)] == [len(cut.tokens(i)[0]) for i in range(3)] == [6, 10, 10]
    _, mask_T, teacher_T = cut.tokens(2)
    t2d = torch.ones(VOCAB, dtype=torch.bool)
    assert term_counts(mask_T, teacher_T, t2d, 2) == [7, 6], "nothing is drafted past the cut"
    assert make_batch([cut[2]], t2d, 2).term_counts == [7, 6]
