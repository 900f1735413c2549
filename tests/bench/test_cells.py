"""The figures of a cell, the advice drawn from cells, counters, and the plots."""

from __future__ import annotations

import dataclasses
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.advice import break_even, break_even_verdict, cell_verdict, pooled, serve_with, verdict
from eyas.bench.cells import Cell, by_context, make_cell
from eyas.bench.counters import parse
from eyas.bench.measured import Measured, Sample, covered
from eyas.report.bench import charts, page, parts
from eyas.report.chart import LineChart
from eyas.report.draw import draw
from eyas.report.page import html
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
        "hints": [{"cause": "layer ids", "found": None, "detail": "[x]"}],
        "notes": ["mind [this]"],
        "verdict": verdict(cells),
        "versions": {"engine": "vllm 0.32"},
        "flags": {
            "draft_tokens": [1, 3],
            "dtype": None,
            "temperature": 0.0,
            "threads": 1,
            "random_weights": False,
        },
        "hardware": {"cpu": "a processor", "cores": 2, "memory_bytes": 8e9, "gpus": []},
        "meaning": "what the figures mean",
        "clock": "wall",
    }


def test_the_report_shows_every_cell_and_the_verdict() -> None:
    from rich.console import Console

    console = Console(width=140, record=True, file=io.StringIO())
    for part in parts(result(across({(1, 3): 1.6, (8, 3): 0.9}))):
        console.print(part)
    shown = console.export_text()
    for expected in ("1.60", "0.90", "layer ids", "[x]", "mind [this]", "at 1 stream serve with 3 drafts"):
        assert expected in shown


def test_what_was_measured_is_plotted_over_concurrency() -> None:
    made = charts(result(across({(1, 1): 1.2, (1, 3): 1.6, (8, 1): 1.1, (8, 3): 0.9})))
    assert set(made) == {"acceptance_by_position", "accept_length", "speedup"}
    speed = made["speedup"]
    assert isinstance(speed, LineChart)
    assert speed.guide is not None
    assert speed.guide[0] == 1.0
    assert {name: dict(points) for name, points in speed.series.items()} == {
        "1 draft": {1: pytest.approx(1.2), 8: pytest.approx(1.1)},
        "3 drafts": {1: pytest.approx(1.6), 8: pytest.approx(0.9)},
    }


def test_at_one_concurrency_the_draft_lengths_are_the_axis() -> None:
    speed = charts(result(across({(1, 1): 1.2, (1, 3): 1.6})))["speedup"]
    assert isinstance(speed, LineChart)
    assert {name: [x for x, _ in points] for name, points in speed.series.items()} == {"1 stream": [1, 3]}


def test_of_random_weights_the_break_even_is_plotted_and_nothing_else() -> None:
    cells = across({(1, 3): 1.6, (8, 3): 0.8})
    (chart,) = charts({**result(cells), "break_even": break_even(cells)}).values()
    assert isinstance(chart, LineChart)
    costs = {row["concurrency"]: row["break_even"] for row in break_even(cells)}
    assert {name: dict(points) for name, points in chart.series.items()} == {"3 drafts": costs}


def test_what_was_not_measured_has_no_plot() -> None:
    cells = [cell(speedup=None, baseline_tok_s=None, round_cost=None, acceptance_by_position=None)]
    made = charts(result(cells))
    assert set(made) == {"accept_length"}
    assert draw(made) is not None


def test_the_page_has_the_verdict_the_cells_and_what_they_were_measured_with() -> None:
    found = result(across({(1, 3): 1.6, (8, 3): 0.9}))
    text = html(page(found), draw(charts(found))).decode()
    for expected in (
        "At 1 stream serve with 3 drafts",
        "1.60",
        "vllm 0.32",
        "a processor",
        "layer ids",
        "1, 3",
    ):
        assert expected in text, f"the report lacks {expected}"
    assert text.index("At 1 stream serve") < text.index("<table"), "the verdict comes first"


def test_the_flags_on_the_page_are_those_of_the_result() -> None:
    text = html(page(result(across({(1, 3): 1.6}))), {}).decode()
    for name, value in (
        ("draft tokens", "1, 3"), ("dtype", "not given"), ("temperature", "0.0"), ("threads", "1"),
        ("random weights", "no"), ("cores", "2"), ("GPUs", "none"),
    ):  # fmt: skip
        assert f'>{name}</td><td class="words">{value}</td>' in text, f"{name} reads otherwise"


def test_a_planned_drafter_is_told_what_it_must_exceed_at_each_concurrency() -> None:
    cells = [
        cell(draft_tokens=3, tok_s=5.0, baseline_tok_s=10.0, tokens=11, requests=1, rounds=10),
        cell(draft_tokens=1, concurrency=8, tok_s=2.0, baseline_tok_s=10.0, tokens=11, requests=1, rounds=10),
    ]
    text = break_even_verdict(break_even(cells))
    assert "at 1 stream above 2.00 with 3 drafts" in text
    assert "at 8 streams above 5.00 with 1 draft, which that many cannot reach" in text
