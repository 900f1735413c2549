"""A report's page: one file, nothing fetched, nothing executed, all text escaped."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from eyas.report.chart import DatasetChart, LineChart
from eyas.report.draw import MISSING, draw
from eyas.report.page import Page, Section, html
from eyas.report.table import Line, Table

HOSTILE = "\"><img src=x onerror=alert(1)><script>alert(2)</script>' {{ 7*7 }} [red]&amp;\x1b[31m"
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "figure"),
    *("table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "path", "text", "tspan", "defs", "use", "clippath", "rect"),
}


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_page() -> str:
    table = Table(HOSTILE, ("dataset", HOSTILE))
    table.add_row(HOSTILE, "1.5")
    table.add_section()
    table.add_row("all", "1.5")
    charts = {
        "lines": LineChart(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: [(1, 1.2)]}, guide=(1.0, HOSTILE)),
        "datasets": DatasetChart(HOSTILE, [(HOSTILE, 1.4, 0.9)], {HOSTILE: 1.2}),
    }
    page = Page(HOSTILE, HOSTILE, [Section(HOSTILE, [table, Line(HOSTILE), *charts])])
    return html(page, draw(charts)).decode()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def hostile() -> Reader:
    return Reader(hostile_page())


def test_text_from_data_is_shown_and_never_obeyed(hostile: Reader) -> None:
    assert set(hostile.tags) <= ALLOWED, f"a dataset's name made {set(hostile.tags) - ALLOWED}"
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    assert hostile.text.count("<script>alert(2)</script>' {{ 7*7 }} [red]&amp;") >= 6, (
        "a name is not shown as it is"
    )
    assert "\x1b" not in hostile.text


def test_the_page_needs_nothing_but_itself() -> None:
    text = hostile_page()
    assert not re.search(r"https?:|//[a-z]|url\((?!#)|@import", text), "the page points outside"
    for name, value in Reader(text).attributes:
        if name in ("href", "xlink:href", "src"):
            assert value.startswith("#"), f"{name}={value} is fetched from somewhere"


def test_names_in_the_plots_of_one_page_do_not_collide(hostile: Reader) -> None:
    ids = [value for name, value in hostile.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "a plot would be drawn with the parts of another"
    used = {value[1:] for name, value in hostile.attributes if name in ("href", "xlink:href")}
    assert used <= set(ids), "a part of a plot is lost"


def test_the_verdict_comes_before_every_figure() -> None:
    table = Table("t", ("a",))
    table.add_row("1234.5")
    text = html(Page("title", "what it means", [Section("s", [table])]), {}).decode()
    assert text.index("what it means") < text.index("1234.5")


def test_plots_that_could_not_be_drawn_are_said() -> None:
    with_plots = Page("title", "verdict", [Section("s", ["speedup"])])
    assert MISSING in Reader(html(with_plots, None).decode()).text
    without = Page("title", "verdict", [Section("s", [Line("text")])])
    assert MISSING not in Reader(html(without, None).decode()).text


def test_a_plot_takes_the_colours_of_the_page(hostile: Reader) -> None:
    styles = [value for name, value in hostile.attributes if name == "style"]
    assert any("var(--ink)" in style for style in styles)
    assert not [style for style in styles if "#1f2328" in style], "black letters on a dark page"


def test_a_table_is_one_thing_on_a_terminal_and_on_a_page() -> None:
    table = Table("[b]title", ("dataset", "tokens"))
    table.add_row("[red]x\x1b[0m", "1,234")
    table.add_section()
    table.add_row("all", "1,234")
    console = Console(file=io.StringIO(), width=80)
    console.print(table, Line("[bold]said"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("[b]title", "[red]x\ufffd[0m", "1,234", "[bold]said"):
        assert text in shown
    assert "\x1b" not in shown


def test_a_row_of_another_width_than_its_table_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Table("t", ("a", "b")).add_row("1")
