from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.core.errors import EyasError
from eyas.core.rows import RowIds, TokenRow, drawn, parse_row, read_rows, turns

masks = st.lists(st.integers(0, 1), max_size=40)


@given(masks)
def test_turns_are_the_maximal_runs_of_labels(mask: list[int]) -> None:
    found = turns(mask)
    rebuilt = [0] * len(mask)
    for p, q in found:
        rebuilt[p : q + 1] = [1] * (q - p + 1)
    assert rebuilt == mask, "a turn misses or adds a label"
    assert all(b[0] - a[1] >= 2 for a, b in zip(found, found[1:], strict=False)), (
        "two runs that touch are one turn"
    )


@given(st.lists(st.one_of(st.none(), st.sampled_from(["a", "a~2", "d#1", "7"])), max_size=12))
def test_row_ids_are_unique_whatever_ids_are_given(given_ids: list[str | None]) -> None:
    ids = RowIds("d")
    names = [ids.name(value) for value in given_ids]
    assert len(set(names)) == len(names), f"two rows share an id: {names}"


def test_a_repeated_id_is_numbered_and_counted() -> None:
    ids = RowIds("d")
    assert [ids.name("a"), ids.name(None), ids.name("a"), ids.name("a")] == ["a", "d#1", "a~2", "a~3"]
    assert ids.repeated == 2


@given(st.lists(st.integers(0, 9), max_size=9), st.text(max_size=5))
def test_a_row_survives_its_own_line(ids: list[int], name: str) -> None:
    row = TokenRow(name, "d", ids, [i % 2 for i in ids], ["exact"])
    assert parse_row(row.line(), Path("f"), 1) == row


def test_a_record_is_not_cut_at_a_line_separator_inside_its_text(tmp_path: Path) -> None:
    row = TokenRow("a\u2028b", "d", [1], [1], [])
    (tmp_path / "f").write_bytes(row.line() + row.line())
    assert [r.id for r in read_rows(tmp_path / "f")] == ["a\u2028b"] * 2


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b'{"id":"a","dataset":"d","input_ids":[1,2],"loss_mask":[1],"flags":[]}\n')
    with pytest.raises(EyasError) as error:
        list(read_rows(tmp_path / "f"))
    assert error.value.record == 1
    assert error.value.file == str(tmp_path / "f")


@given(st.lists(st.text(max_size=3), unique=True, max_size=30), st.integers(0, 30), st.randoms())
def test_what_a_cap_keeps_does_not_depend_on_the_order_of_the_file(
    keys: list[str], cap: int, random: object
) -> None:
    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    kept = {keys[i] for i in drawn(keys, 42, "d", cap, None)}
    assert {shuffled[i] for i in drawn(shuffled, 42, "d", cap, None)} == kept
    assert len(kept) == min(cap, len(keys))


def test_a_larger_cap_keeps_what_the_smaller_kept() -> None:
    keys = [str(i) for i in range(50)]
    small, large = set(drawn(keys, 1, "d", 10, None)), set(drawn(keys, 1, "d", 20, None))
    assert small < large, "raising a cap must not throw away answers that were paid for"
