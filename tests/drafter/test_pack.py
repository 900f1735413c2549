"""Packing: each row once, budgets kept, order a function of seed and epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eyas.drafter.pack import epoch_order, pack_epoch

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
