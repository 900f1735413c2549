"""A benchmark's result for the terminal, and its plots."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .svg import Points, line_chart
from .text import escape, new_table

if TYPE_CHECKING:
    from rich.console import RenderableType


def tables(result: dict[str, Any]) -> list[RenderableType]:
    """Cells, break-even, hints and the verdict."""
    parts: list[RenderableType] = [_cells(result)]
    if "break_even" in result:
        parts.append(_break_even(result["break_even"]))
    if result["hints"]:
        parts.append(_hints(result["hints"]))
    parts += [f"mind: {escape(note)}" for note in result["notes"]]
    parts.append(escape(result["verdict"]))
    return parts


def plots(result: dict[str, Any]) -> dict[str, str]:
    """SVG texts by file name: acceptance by position, and accept length and speed-up over concurrency."""
    made = {}
    by_position: dict[str, Points] = {
        f"{cell['set']}, {cell['draft_tokens']} drafts": [
            (i + 1, share) for i, share in enumerate(cell["acceptance_by_position"])
        ]
        for cell in _of_lowest_concurrency(result["cells"])
        if cell["acceptance_by_position"]
    }
    if by_position:
        made["acceptance_by_position.svg"] = line_chart(
            "Acceptance by position", "draft position", "share of rounds", by_position
        )
    for field, title, guide in (("accept_length", "Accept length", None), ("speedup", "Speed-up", 1.0)):
        series: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in result["pooled"]:
            if row[field] is not None:
                series[f"{row['draft_tokens']} drafts"].append((row["concurrency"], row[field]))
        if series:
            made[f"{field}.svg"] = line_chart(
                f"{title} over concurrency", "streams", title.lower(), series, guide
            )
    return made


def _of_lowest_concurrency(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lowest = min((cell["concurrency"] for cell in cells), default=1)
    return [cell for cell in cells if cell["concurrency"] == lowest]


def _cells(result: dict[str, Any]) -> Any:
    table = new_table(
        f"Measured by {result['versions']['engine']}, {result['clock']} time",
        *(
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
    for cell in result["cells"]:
        same = {True: "yes", False: "NO", None: ""}[cell["identical_outputs"]]
        table.add_row(
            escape(cell["set"]),
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


def _break_even(rows: list[dict[str, Any]]) -> Any:
    taus = list(rows[0]["speedup_at"]) if rows else []
    table = new_table(
        "The accept length that breaks even, and the speed-up that a better one gives",
        *("streams", "drafts", "breaks even at", *(f"tau {tau}" for tau in taus)),
    )
    for row in rows:
        cost = f"{row['break_even']:.2f}" + ("" if row["reachable"] else " (out of reach)")
        speedups = [_number(row["speedup_at"][tau], 2) or "out of reach" for tau in taus]
        table.add_row(str(row["concurrency"]), str(row["draft_tokens"]), cost, *speedups)
    return table


def _hints(found: list[dict[str, Any]]) -> Any:
    table = new_table(
        "The accept length is poor; the usual causes, likeliest first", "cause", "found", "what was seen"
    )
    for hint in found:
        table.add_row(
            hint["cause"],
            {True: "YES", False: "no", None: "not checked"}[hint["found"]],
            escape(hint["detail"]),
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
