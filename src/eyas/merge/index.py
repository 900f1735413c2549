"""The index: where each line lies and how long its row will be, in 8 bytes a line.

Lines are numbered through all files in input order. A line's place is the sum of the lengths before it, of which
every 256th is kept, so that an index of 30 million lines takes 240 MB; the order of the rows takes 4 bytes more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from eyas.merge.inputs import TokenFile

SLOW = 1 << 31
"""Set in a line's word: `judge` has to read it again; the fast path cannot."""
NAMELESS = 1 << 30
"""Set in a line's word: it has no id of its own."""
DEV = 1 << 29
"""Set in a line's word: its row goes to the development file."""
SIZE = DEV - 1
"""The bits of a word that hold the bytes of the row's output line; 0 for a line that gives no row."""

_BLOCK = 128


class LineIndex:
    """Lengths of all lines (with their ends), and a word for each: the size of its row and three marks."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        self.files = list(files)
        self.lengths = array("I")
        self.words = array("I")
        self.first_lines: list[int] = []
        self._blanks = array("q")
        self._starts: list[int] = []
        self._dataset_firsts: list[int] = []
        self._bases = array("Q")
        self._end = 0

    def __len__(self) -> int:
        return len(self.lengths)

    def begin_file(self) -> None:
        """The lines added from now on are those of the next file."""
        number = len(self.first_lines)
        continues = number and self.files[number].dataset == self.files[number - 1].dataset
        self._dataset_firsts.append(self._dataset_firsts[-1] if continues else len(self.lengths))
        self.first_lines.append(len(self.lengths))
        self._starts.append(self._end)

    def add(self, lengths: np.ndarray, words: np.ndarray, blank: np.ndarray) -> None:
        """Append lines: lengths and words, uint32, and which of them are blank, bool."""
        first = len(self.lengths)
        starts = self._end + np.cumsum(lengths, dtype=np.uint64) - lengths
        self._bases.frombytes(starts[-first % _BLOCK :: _BLOCK].tobytes())
        self._blanks.frombytes((np.flatnonzero(blank) + first).tobytes())
        self.lengths.frombytes(lengths.tobytes())
        self.words.frombytes(words.tobytes())
        self._end += int(lengths.sum(dtype=np.uint64))

    def sizes(self, lines: np.ndarray) -> np.ndarray:
        """Bytes of the output rows of `lines`, int64."""
        return (np.frombuffer(self.words, np.uint32)[lines] & SIZE).astype(np.int64)

    def files_of(self, lines: np.ndarray) -> np.ndarray:
        """The number of the file that each of `lines` is in."""
        return np.searchsorted(np.array(self.first_lines), lines, side="right") - 1

    def places(self, lines: np.ndarray) -> np.ndarray:
        """The offset of each of `lines` in its own file; a few hundred lines at a time."""
        blocks, rest = lines // _BLOCK, lines % _BLOCK
        around = np.minimum(blocks[:, None] * _BLOCK + np.arange(_BLOCK), len(self) - 1)
        lengths = np.frombuffer(self.lengths, np.uint32)[around]
        before = np.where(np.arange(_BLOCK) < rest[:, None], lengths, 0).sum(1, dtype=np.int64)
        bases = np.frombuffer(self._bases, np.uint64)[blocks].astype(np.int64)
        return bases + before - np.array(self._starts)[self.files_of(lines)]

    def line_numbers(self, lines: np.ndarray) -> np.ndarray:
        """The number of each of `lines` in its own file, from 1."""
        return lines - np.array(self.first_lines)[self.files_of(lines)] + 1

    def record_numbers(self, lines: np.ndarray) -> np.ndarray:
        """The number of each of `lines` among those of its dataset that are not blank, from 0."""
        first = np.array(self._dataset_firsts)[self.files_of(lines)]
        blanks = np.frombuffer(self._blanks, np.int64)
        return lines - first - (np.searchsorted(blanks, lines) - np.searchsorted(blanks, first))

    @property
    def datasets(self) -> dict[str, tuple[int, int]]:
        """dataset -> (its first line, the line after its last); a dataset's files follow each other."""
        firsts = [*self.first_lines, *[len(self)] * (len(self.files) + 1 - len(self.first_lines))]
        ranges: dict[str, tuple[int, int]] = {}
        for file, first, end in zip(self.files, firsts, firsts[1:], strict=False):
            ranges[file.dataset] = (ranges.get(file.dataset, (first, end))[0], end)
        return ranges
