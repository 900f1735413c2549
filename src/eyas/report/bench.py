"""A benchmark's result: its tables, its plots and its page."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .chart import Chart, LineChart
from .page import Page, Section
from .table import Line, Part, Table
from .text import counted, size

PLAIN_SPEED = (1.0, "plain decoding")


def parts(result: dict[str, Any]) -> list[Part]:
    """Cells, break-even, hints, what to mind and the verdict, for a terminal."""
    found: list[Part] = [_cells(result)]
    if "break_even" in result:
        found.append(break_even_table(result["break_even"]))
    if result["hints"]:
        found.append(_hints(result["hints"]))
    return [*found, *_notes(result), Line(result["verdict"])]


def page(result: dict[str, Any]) -> Page:
    """The same with plots, versions, flags and hardware; the verdict first."""
    names = ", ".join(dict.fromkeys(cell["set"] for cell in result["cells"]))
    sections: list[tuple[str, list[Part | str]]] = [
        ("Why the accept length may be poor", [_hints(result["hints"])] if result["hints"] else []),
        ("Break-even", [break_even_table(result["break_even"])] if "break_even" in result else []),
        ("Plots", list(charts(result))),
        ("Every cell", [_cells(result), *_notes(result), Line(result["meaning"])]),
        ("What it was measured with", [*_surroundings(result)]),
    ]
    return Page(
        f"Benchmark: {names}",
        result["verdict"][:1].upper() + result["verdict"][1:],
        [Section(heading, found) for heading, found in sections if found],
    )


def charts(result: dict[str, Any]) -> dict[str, Chart]:
    """Acceptance by position, and accept length and speed-up over concurrency; what was not measured has none. Of a
    drafter of random weights, whose acceptance says nothing: the break-even."""
    if "break_even" in result:
        title, settings = "Accept length that breaks even", {"bottom": 1.0, "least_top": 2.0}
        return _by_concurrency(result["break_even"], "break_even", title, settings)
    made: dict[str, Chart] = {}
    by_position = _by_position(result["cells"])
    if by_position:
        made["acceptance_by_position"] = LineChart(
            "Acceptance by position", "draft position", "share of rounds", by_position, percent=True
        )
    made |= _by_concurrency(
        result["pooled"], "accept_length", "Accept length", {"bottom": 1.0, "least_top": 2.0}
    )
    made |= _by_concurrency(result["pooled"], "speedup", "Speed-up", {"guide": PLAIN_SPEED, "least_top": 1.2})
    return made


def break_even_table(rows: list[dict[str, Any]]) -> Table:
    """rows: `break_even` of a result."""
    taus = list(rows[0]["speedup_at"]) if rows else []
    table = Table(
        "The accept length that breaks even, and the speed-up that a better one gives",
        ("streams", "drafts", "breaks even at", *(f"speed-up at {tau}" for tau in taus)),
    )
    for row in rows:
        cost = f"{row['break_even']:.2f}" + ("" if row["reachable"] else " (out of reach)")
        speedups = [_number(row["speedup_at"][tau], 2) or "out of reach" for tau in taus]
        table.add_row(str(row["concurrency"]), str(row["draft_tokens"]), cost, *speedups)
    return table


def _by_position(cells: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """At the lowest concurrency: each set at the longest draft length, which holds the shorter ones' positions; a
    single set at each of its draft lengths."""
    lowest = min((cell["concurrency"] for cell in cells), default=1)
    known = [cell for cell in cells if cell["concurrency"] == lowest and cell["acceptance_by_position"]]
    sets = {cell["set"] for cell in known}
    longest = max((cell["draft_tokens"] for cell in known), default=0)
    return {
        counted(cell["draft_tokens"], "draft") if len(sets) == 1 else cell["set"]: [
            (i + 1, share) for i, share in enumerate(cell["acceptance_by_position"])
        ]
        for cell in known
        if len(sets) == 1 or cell["draft_tokens"] == longest
    }


def _by_concurrency(
    rows: list[dict[str, Any]], field: str, title: str, settings: dict[str, Any]
) -> dict[str, Chart]:
    """A line a draft length over concurrency; where there is one concurrency alone, over the draft length."""
    measured = [row for row in rows if row[field] is not None]
    over_drafts = (
        len({row["concurrency"] for row in measured}) == 1 < len({row["draft_tokens"] for row in measured})
    )
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in measured:
        streams, count = row["concurrency"], row["draft_tokens"]
        if over_drafts:
            series[counted(streams, "stream")].append((count, row[field]))
        else:
            series[counted(count, "draft")].append((streams, row[field]))
    over, x_label = ("draft length", "drafts a round") if over_drafts else ("concurrency", "streams")
    y_label = title.split(" that ")[0].lower()
    return {field: LineChart(f"{title} over {over}", x_label, y_label, series, **settings)} if series else {}


def _notes(result: dict[str, Any]) -> list[Line]:
    return [Line(f"mind: {note}") for note in result["notes"]]


def _cells(result: dict[str, Any]) -> Table:
    table = Table(
        f"Measured by {result['versions']['engine']}, {result['clock']} time",
        (
            "set",
            "drafts",
            "streams",
            "accept length",
            "mean",
            "tok/s",
            "plain",
            "speed-up",
            "round cost",
            "same text",
        ),
    )
    before = None
    for cell in result["cells"]:
        if before not in (None, cell["set"]):
            table.add_section()
        before = cell["set"]
        same = {True: "yes", False: "NO", None: ""}[cell["identical_outputs"]]
        table.add_row(
            cell["set"],
            str(cell["draft_tokens"]),
            str(cell["concurrency"]),
            _number(cell["accept_length"], 3),
            _number(cell["accept_length_mean"], 3),
            _number(cell["tok_s"], 1),
            _number(cell["baseline_tok_s"], 1),
            _number(cell["speedup"], 2) or "not measured",
            _number(cell["round_cost"], 2),
            same,
        )
    return table


def _hints(found: list[dict[str, Any]]) -> Table:
    table = Table(
        "The accept length is poor; the usual causes, likeliest first",
        ("cause", "found", "what was seen"),
        left=(0, 1, 2),
    )
    for hint in found:
        table.add_row(
            hint["cause"], {True: "YES", False: "no", None: "not checked"}[hint["found"]], hint["detail"]
        )
    return table


def _surroundings(result: dict[str, Any]) -> list[Part]:
    hardware = result["hardware"]
    machine = {
        "processor": hardware["cpu"],
        "cores": hardware["cores"],
        "memory": size(hardware["memory_bytes"]),
        "GPUs": hardware["gpus"] or "none",
    }
    made = []
    for title, values in (
        ("Flags", result["flags"]),
        ("Versions", result["versions"]),
        ("Hardware", machine),
    ):
        table = Table(title, ("name", "value"), left=(0, 1))
        for name, value in values.items():
            table.add_row(name.replace("_", " "), _said(value))
        made.append(table)
    return list(made)


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not given" if value is None else str(value)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
