"""Figures as text, and the two things that a command prints: one JSON object, or the parts of a report."""

from __future__ import annotations

from typing import Any


def print_json(value: dict[str, Any]) -> None:
    """The one object that `--json` prints on standard output."""
    import orjson

    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


WIDE = 140
"""Columns of a report that goes into a file or a pipe, where nothing tells how wide a line may be."""


def print_parts(*parts: Any) -> None:
    """The parts of a report on standard output, as wide as the terminal (COLUMNS in the environment overrules), but a
    table no narrower than its figures: a figure in two lines is another figure."""
    import os
    import sys

    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = Console().width if known else WIDE
    for part in parts:
        console = Console(width=max(width, getattr(part, "least_width", 0)))
        console.print(part, soft_wrap=getattr(part, "whole", False))


def number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def counted(count: int | str, noun: str) -> str:
    """`1 draft`, `2 drafts`."""
    return f"{count} {noun}" if int(count) == 1 else f"{count} {noun}s"


def figure(value: float | None, digits: int = 3) -> str:
    """A measured figure; a dash where there was nothing to measure."""
    return "-" if value is None else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def size(value: float | None) -> str:
    """Bytes in powers of 1000."""
    if value is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
