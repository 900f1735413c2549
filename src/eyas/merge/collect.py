"""The first pass over all files, and what it leaves: the index, the records, examples of what was dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from eyas.core.executor import in_order
from eyas.core.progress import Progress
from eyas.merge.index import NAMELESS, LineIndex
from eyas.merge.inputs import TokenFile
from eyas.merge.options import STAGE
from eyas.merge.records import RecordFile
from eyas.merge.rules import Rules
from eyas.merge.scan import BLANK, EXAMPLES, Scanned, Segment, scan, segments


@dataclass
class Collected:
    """All lines, judged. keys: a file of 16 bytes a line that equal rows share, zeros where there is no row.

    examples: reason -> the first few lines of each dataset dropped for it. odd_ids: datasets that have ids with `~` or
    `#` in them.
    """

    index: LineIndex
    records: RecordFile
    keys: Path
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    odd_ids: set[str] = field(default_factory=set)

    def add(self, scanned: Scanned) -> None:
        """Add the lines of the next segment. A row without an id gets the size that its id will give it."""
        table = scanned.table()
        index, file = self.index, self.index.files[len(self.index.first_lines) - 1]
        first = len(index)
        index.add(table["length"], table["word"], table["reason"] == BLANK)
        nameless = np.flatnonzero(table["word"] & NAMELESS) + first
        frame = len(orjson.dumps(f"{file.dataset}#"))
        sizes = frame + np.char.str_len(index.record_numbers(nameless).astype(np.str_))
        np.frombuffer(index.words, np.uint32)[nameless] += sizes.astype(np.uint32)
        self.records.append(table)
        if scanned.has_odd_ids:
            self.odd_ids.add(file.dataset)
        for reason, found in scanned.examples.items():
            shown = self.examples.setdefault(reason, [])
            room = EXAMPLES - sum(example["dataset"] == file.dataset for example in shown)
            for line, text in found[:room]:
                place = line + first - index.first_lines[-1] + 1
                shown.append({"dataset": file.dataset, "file": file.name, "line": place, "found": text})


def collect(
    files: Sequence[TokenFile], rules: Rules, folder: Path, workers: int, with_keys: bool
) -> Collected:
    """Judge every line of `files`; what does not fit in memory is kept in `folder`."""
    collected = Collected(LineIndex(files), RecordFile(folder / "records"), folder / "keys")
    pieces = [
        (number, piece)
        for number, file in enumerate(files)
        for piece in segments(file.text, file.bytes, file.dataset, rules, "keys" if with_keys else "")
    ]
    with open(collected.keys, "wb") as keys:
        for number, scanned in _scanned(pieces, workers):
            _begin_files(collected.index, number + 1)
            collected.add(scanned)
            keys.write(scanned.keys)
    _begin_files(collected.index, len(files))
    return collected


def _begin_files(index: LineIndex, count: int) -> None:
    """Empty files have no segment; they begin where the next one does."""
    while len(index.first_lines) < count:
        index.begin_file()


def _scanned(pieces: list[tuple[int, Segment]], workers: int) -> Iterator[tuple[int, Scanned]]:
    """(file number, what was scanned) of each piece, in order."""
    with Progress(STAGE, sum(piece.end - piece.start for _, piece in pieces) / 1e6, "MB read") as progress:
        done = in_order(scan, [piece for _, piece in pieces], workers)
        for (number, _), (piece, scanned) in zip(pieces, done, strict=True):
            progress.advance((piece.end - piece.start) / 1e6)
            yield number, scanned
