"""The figures of a cell, the advice drawn from cells, counters, and the plots."""

from __future__ import annotations

import dataclasses
import io
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.advice import break_even, cell_verdict, pooled, serve_with, verdict
from eyas.bench.cells import Cell, by_context, make_cell
from eyas.bench.counters import parse
from eyas.bench.measured import Measured, Sample, covered
from eyas.report.bench import plots, tables
from eyas.report.svg import line_chart
from stub_server import Stub


def sample(name: str, tokens: int, begun: float, ended: float, rounds: int | None = None) -> Sample:
    accepted = None if rounds is None else [0] * rounds
    return Sample(name, 10, list(range(tokens)), begun, ended, rounds, accepted)


def cell(**changes: object) -> Cell:
    made, _ = make_cell(
        "s",
        "vllm",
        3,
        1,
        0.0,
        Measured([sample("a", 11, 0.0, 1.0, 5)]),
        [Measured([sample("a", 11, 0.0, 2.0)])],
    )
    return dataclasses.replace(made, **changes)


def test_concurrent_streams_share_the_time_they_overlap_in() -> None:
    drafted = Measured([sample("a", 11, 0.0, 1.0, 5), sample("b", 11, 0.5, 1.5, 10)])
    made, detail = make_cell("s", "hf", 3, 2, 0.0, drafted, [])
    assert made.tok_s == pytest.approx(20 / 1.5), "two streams at once give more than one"
    assert detail.tok_s_stream == pytest.approx(10.0)
    assert made.accept_length == pytest.approx(20 / 15), "pooled over requests"
    assert made.accept_length_mean == pytest.approx((2.0 + 1.0) / 2)


def test_a_baseline_is_pooled_over_its_blocks() -> None:
    blocks = [Measured([sample("a", 11, 0.0, 1.0)]), Measured([sample("a", 11, 0.0, 3.0)])]
    made, _ = make_cell("s", "vllm", 3, 1, 0.0, Measured([sample("a", 11, 0.0, 1.0, 5)]), blocks)
    assert made.baseline_tok_s == pytest.approx(20 / 4)
    assert made.speedup == pytest.approx(2.0)
    assert made.round_cost == pytest.approx(1.0)


def test_a_changed_answer_is_seen_with_its_place() -> None:
    drafted = Measured([Sample("a", 1, [1, 2, 9], 0.0, 1.0, 2)])
    made, detail = make_cell("s", "hf", 3, 1, 0.0, drafted, [Measured([Sample("a", 1, [1, 2, 3], 0.0, 1.0)])])
    assert made.identical_outputs is False
    assert detail.differing == [{"id": "a", "at": 2}]


def test_the_accept_length_is_shown_by_context_length() -> None:
    """C045: acceptance by context length."""
    short = Sample("a", 200, [0] * 21, 0.0, 1.0, 5)
    long = Sample("b", 5000, [0] * 21, 0.0, 1.0, 20)
    assert by_context([short, long]) == {"up to 256": 4.0, "up to 8192": 1.0}


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda p: (min(p), max(p))), max_size=8)
)
def test_covered_time_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    inside = {second for begun, ended in spans for second in range(begun, ended)}
    assert covered([(float(b), float(e)) for b, e in spans]) == len(inside)


def test_counters_are_summed_over_engines_and_their_twins_left_out() -> None:
    stub = Stub("vllm", (3, 1), 3)
    stub.count()
    text = stub.metrics() + 'vllm:spec_decode_num_drafts_total{engine="1"} 5.0\n'
    text += 'vllm:spec_decode_num_drafts_created{engine="0"} 1.7e9\n'
    found = parse(text)
    assert (found.drafts, found.draft_tokens, found.accepted) == (7, 6, 2)
    assert found.accepted_by_position == (1, 1, 0)
    assert found.generated == 5


def test_the_verdict_says_what_limits() -> None:
    assert cell_verdict(3.3, 1.5, 2.2) == (
        "limited by verification cost: a round takes 2.20 plain steps; 0.1 more accept length gives +3%"
    )
    assert cell_verdict(1.5, 1.4, 1.1).startswith("limited by acceptance")
    assert "not measured" in cell_verdict(2.0, None, None)


def across(speeds: dict[tuple[int, int], float]) -> list[Cell]:
    """Cells of these speed-ups by (concurrency, drafts)."""
    return [
        cell(concurrency=streams, draft_tokens=drafts, tok_s=10.0 * speed, baseline_tok_s=10.0, speedup=speed)
        for (streams, drafts), speed in speeds.items()
    ]


def test_the_draft_length_to_serve_with_is_chosen_at_each_concurrency() -> None:
    cells = across({(1, 1): 1.2, (1, 3): 1.6, (8, 1): 1.1, (8, 3): 0.9, (32, 1): 0.8, (32, 3): 0.6})
    assert serve_with(cells) == {1: 3, 8: 1, 32: 0}
    text = verdict(cells)
    assert "at 32 streams serve without a drafter" in text
    assert "slower above 8 streams" in text


def test_sets_are_pooled_by_time_not_by_their_number() -> None:
    cells = [
        cell(set="a", tokens=101, requests=1, rounds=50, tok_s=20.0, baseline_tok_s=10.0),
        cell(set="b", tokens=11, requests=1, rounds=10, tok_s=5.0, baseline_tok_s=10.0),
    ]
    of = pooled(cells)[1, 3]
    assert of["accept_length"] == pytest.approx(110 / 60)
    assert of["speedup"] == pytest.approx((100 / 10 + 10 / 10) / (100 / 20 + 10 / 5))


def test_break_even_names_what_no_acceptance_can_reach() -> None:
    cells = [cell(draft_tokens=1, tok_s=2.0, baseline_tok_s=10.0, tokens=11, requests=1, rounds=10)]
    (row,) = break_even(cells)
    assert row["break_even"] == pytest.approx(5.0)
    assert row["reachable"] is False
    assert row["speedup_at"] == {"2": pytest.approx(0.4), "2.5": None, "3": None}


def result(cells: list[Cell]) -> dict:
    return {
        "cells": [c.plain() for c in cells],
        "pooled": [{"concurrency": s, "draft_tokens": d, **of} for (s, d), of in pooled(cells).items()],
        "break_even": break_even(cells),
        "hints": [{"cause": "layer ids", "found": None, "detail": "[x]"}],
        "notes": ["mind [this]"],
        "verdict": verdict(cells),
        "versions": {"engine": "vllm"},
        "clock": "wall",
    }


def test_the_report_shows_every_cell_and_the_verdict() -> None:
    from rich.console import Console

    console = Console(width=140, record=True, file=io.StringIO())
    for part in tables(result(across({(1, 3): 1.6, (8, 3): 0.9}))):
        console.print(part)
    shown = console.export_text()
    for expected in ("1.60", "0.90", "layer ids", "[x]", "mind [this]", "at 1 stream serve with 3 drafts"):
        assert expected in shown


def test_plots_are_well_formed_and_the_same_twice() -> None:
    cells = across({(1, 1): 1.2, (1, 3): 1.6, (8, 1): 1.1, (8, 3): 0.9})
    made = plots(result(cells))
    assert set(made) == {"acceptance_by_position.svg", "accept_length.svg", "speedup.svg"}
    for svg in made.values():
        ET.fromstring(svg)
    assert made == plots(result(cells))


def test_a_plots_text_is_escaped() -> None:
    svg = line_chart("<script>", "x", "y", {"a & b": [(1, 1.0), (8, 2.0)]})
    ET.fromstring(svg)
    assert "<script>" not in svg
