"""A report as one HTML file: style and plots inside it, nothing fetched, nothing executed, all text escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .draw import COLOURS, INK, MISSING, PALE, PAPER, Drawn
from .table import Line, Part, Table, printable


@dataclass(frozen=True)
class Section:
    """Tables, sentences and plots (by their names) under a heading."""

    heading: str
    parts: Sequence[Part | str]


@dataclass(frozen=True)
class Page:
    """verdict: what the reader must know, in words; it stands first."""

    title: str
    verdict: str
    sections: Sequence[Section]


def html(page: Page, drawn: Mapping[str, Drawn] | None) -> bytes:
    """The page with its plots; where those could not be drawn, it says so and how that is mended."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    plots = {} if drawn is None else {name: Markup(inline(of.svg.decode())) for name, of in drawn.items()}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    wants_plots = any(isinstance(part, str) for section in page.sections for part in section.parts)
    text = environment.get_template("page.html.j2").render(
        page=page,
        sections=[
            (section.heading, [_shown(part, plots) for part in section.parts]) for section in page.sections
        ],
        missing=MISSING if wants_plots and drawn is None else "",
        colours=COLOURS,
    )
    return text.encode("utf-8", "replace")


def _shown(part: Part | str, plots: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows: one of table, line, plot."""
    if isinstance(part, Table):
        return {"table": part}
    if isinstance(part, Line):
        return {"line": part.text}
    return {"plot": plots.get(part)}


def inline(svg: str) -> str:
    """matplotlib's SVG as an element of a page: no prolog, no names of its own, the page's colours and letters."""
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 role="img">', svg, count=1)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r"font-family: [^;\"]*;?", "", svg)
    for colour, name in ((INK, "ink"), (PALE, "pale"), (PAPER, "paper")):
        svg = svg.replace(f": {colour}", f": var(--{name})")
    for number, colour in enumerate(COLOURS):
        svg = svg.replace(f": {colour}", f": var(--series-{number})")
    return svg
