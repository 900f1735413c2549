"""What a report is made of, whoever shows it: tables and sentences. A terminal asks `__rich__`, a page its template.

Cells and sentences are plain text, often from datasets: whoever shows them escapes them, nobody else does.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Table:
    """Rows of text under named columns. left: the columns that hold words, the others hold figures."""

    title: str
    columns: Sequence[str]
    left: Sequence[int] = (0,)
    sections: list[list[tuple[str, ...]]] = field(default_factory=lambda: [[]])
    """The rows, in groups with a rule between them."""

    def add_row(self, *cells: str) -> None:
        assert len(cells) == len(self.columns), f"{self.title}: {len(cells)} cells for {len(self.columns)}"
        self.sections[-1].append(cells)

    def add_section(self) -> None:
        """What follows stands under a rule."""
        self.sections.append([])

    @property
    def least_width(self) -> int:
        """Columns of a terminal that show it without breaking a figure, a word or the first cell of a row."""
        return sum(self._width(i) for i in range(len(self.columns))) + 2 * len(self.columns)

    def _width(self, column: int) -> int:
        """The longest word of the head and of words; the longest of figures and of the first cells."""
        cells = [row[column] for rows in self.sections for row in rows]
        if column and column in self.left:
            cells = [word for cell in cells for word in cell.split()]
        return max(map(len, [*self.columns[column].split(), *cells, "-"]))

    def __rich__(self) -> Any:
        from rich import box, markup
        from rich import table as rich_table

        shown = rich_table.Table(
            title=markup.escape(printable(self.title)) or None,
            box=box.SIMPLE_HEAD,
            collapse_padding=True,  # or ten columns do not fit a terminal of 80
            pad_edge=False,
            title_justify="left",
            title_style="bold",
            min_width=min(len(self.title), 100),  # a title wraps at its table's width
        )
        for i, column in enumerate(self.columns):
            if i in self.left:
                shown.add_column(column, no_wrap=i == 0, overflow="fold")
            else:
                shown.add_column(textwrap.fill(column, self._width(i)), justify="right", no_wrap=True)
        for number, rows in enumerate(self.sections):
            if number:
                shown.add_section()
            for row in rows:
                shown.add_row(*map(_plain, row))
        return shown


@dataclass(frozen=True)
class Line:
    """A sentence; `whole`: a command to be copied, which a terminal does not break into lines."""

    text: str
    whole: bool = False

    def __rich__(self) -> Any:
        return _plain(self.text)


Part = Table | Line


_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, marks that turn the direction of writing, and what XML cannot hold."""


def printable(text: str) -> str:
    """Text that no terminal obeys and no XML reader refuses."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _plain(text: str) -> Any:
    """Text whose markup rich does not obey."""
    from rich.text import Text

    return Text(printable(text))
