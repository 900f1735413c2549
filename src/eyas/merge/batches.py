"""The rows of an output file, cut into batches that are made and written at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eyas.merge.index import LineIndex
from eyas.merge.reader import Lines, lines_at
from eyas.merge.rules import Rules

_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other in the output, `size` bytes of JSON lines.

    suffixes: row of the batch -> the number that makes its id unique.
    """

    size: int
    lines: Lines
    suffixes: dict[int, int]
    rules: Rules


@dataclass(frozen=True)
class Rows:
    """The rows of one output file: `order` holds their line numbers in the index, uint32."""

    index: LineIndex
    order: np.ndarray
    suffixes: dict[int, int]
    rules: Rules
    tokens: int

    def sizes(self) -> Iterator[tuple[int, np.ndarray]]:
        """(place in the order, bytes of each row) for runs of rows."""
        for at in range(0, len(self.order), _ROWS_AT_ONCE):
            yield at, self.index.sizes(self.order[at : at + _ROWS_AT_ONCE])

    @property
    def bytes(self) -> int:
        """Bytes of the whole file as JSON lines."""
        return sum(int(sizes.sum()) for _, sizes in self.sizes())


class Batches:
    """The rows of one file in their order, cut into batches, each made when it is asked for."""

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows = rows
        self._firsts, self._offsets = [0], [0]
        offset = 0
        for at, sizes in rows.sizes():
            for i, end in enumerate((offset + np.cumsum(sizes)).tolist()):
                if end - self._offsets[-1] > size and at + i > self._firsts[-1]:
                    self._firsts.append(at + i)
                    self._offsets.append(offset)
                offset = end
        self._firsts.append(len(rows.order))
        self._offsets.append(offset)

    @property
    def bytes(self) -> int:
        """Bytes of the whole file."""
        return self._offsets[-1]

    @property
    def largest(self) -> int:
        """Bytes of the largest batch; 0 if there is none."""
        return max((end - begin for begin, end in pairwise(self._offsets)), default=0)

    def __len__(self) -> int:
        return len(self._firsts) - 1 if len(self.rows.order) else 0

    def __iter__(self) -> Iterator[Batch]:
        return (self._batch(number) for number in range(len(self)))

    def _batch(self, number: int) -> Batch:
        rows = self.rows
        lines = rows.order[self._firsts[number] : self._firsts[number + 1]]
        marks = rows.suffixes
        return Batch(
            size=self._offsets[number + 1] - self._offsets[number],
            lines=lines_at(rows.index, lines),
            suffixes={i: marks[line] for i, line in enumerate(lines.tolist()) if line in marks}
            if marks
            else {},
            rules=rows.rules,
        )
