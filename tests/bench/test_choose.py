"""Which rows are decoded: a fair and fixed choice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.choose import choose
from eyas.core.rows import EXACT, GREEDY, TokenRow

OWN = [GREEDY, EXACT]


def row(name: str, dataset: str, mask: list[int] | None = None, flags: list[str] | None = None) -> TokenRow:
    mask = [0, 1, 1] if mask is None else mask
    return TokenRow(name, dataset, [7] * len(mask), mask, OWN if flags is None else flags)


def test_datasets_take_turns() -> None:
    rows = [row(f"{d}{i}", d) for d in "abc" for i in range(5)]
    chosen = [rows[i].dataset for i in choose(rows, 7, 42)]
    assert sorted(chosen) == ["a", "a", "a", "b", "b", "c", "c"]


@given(order=st.permutations(range(9)), number=st.integers(1, 12))
def test_the_choice_does_not_depend_on_the_order_of_rows(order: list[int], number: int) -> None:
    rows = [row(f"r{i}", f"d{i % 2}") for i in range(9)]
    shuffled = [rows[i] for i in order]
    names = [rows[i].id for i in choose(rows, number, 1)]
    assert [shuffled[i].id for i in choose(shuffled, number, 1)] == names
    assert len(names) == min(number, 9)


def test_rows_where_nothing_can_be_drafted_are_left_out() -> None:
    rows = [
        row("no prompt", "d", [1, 1, 1]),
        row("one token", "d", [0, 1, 0, 1, 1]),
        row("no answer", "d", [0, 0]),
    ]
    assert choose(rows, 3, 0) == []


def test_the_targets_own_greedy_texts_come_first() -> None:
    rows = [row(f"given{i}", "d", flags=[]) for i in range(8)] + [row("own", "d")]
    assert [rows[i].id for i in choose(rows, 1, 0)] == ["own"]
