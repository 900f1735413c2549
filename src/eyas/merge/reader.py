"""Rows read again where the index says they lie."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from eyas.core.errors import EyasError
from eyas.merge.fast import Heads, take
from eyas.merge.index import NAMELESS, SLOW, LineIndex
from eyas.merge.rules import Drop, Judged, Rules, judge
from eyas.merge.scan import line_of, start_of

_AT_ONCE = 512


@dataclass(frozen=True)
class Lines:
    """Where some lines lie, an array entry a line; small enough to be sent to a worker.

    files: numbers into `paths` and `datasets`. numbers: of the records within their datasets.
    """

    paths: list[Path]
    datasets: list[str]
    files: np.ndarray
    places: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    numbers: np.ndarray


def lines_at(index: LineIndex, lines: np.ndarray) -> Lines:
    """Where some lines of the index lie; a few hundred at a time."""
    lines = lines.astype(np.int64)
    return Lines(
        paths=[file.text for file in index.files],
        datasets=[file.dataset for file in index.files],
        files=index.files_of(lines),
        places=index.places(lines),
        lengths=np.frombuffer(index.lengths, np.uint32)[lines],
        words=np.frombuffer(index.words, np.uint32)[lines],
        numbers=index.record_numbers(lines),
    )


def read(lines: Lines, rules: Rules) -> Iterator[tuple[str, str, Judged]]:
    """(id, dataset, row) of each line; the id is the row's own or `<dataset>#<n>`, not yet made unique."""
    handles = {file: os.open(lines.paths[file], os.O_RDONLY) for file in set(lines.files.tolist())}
    columns = (lines.files, lines.places, lines.lengths, lines.words, lines.numbers)
    heads = _heads()
    try:
        for file, place, length, word, number in zip(*(column.tolist() for column in columns), strict=True):
            line = os.pread(handles[file], length, place)
            if word & SLOW:
                row: Judged | Drop | None = judge(line_of(line, place), rules)
            else:
                row = take(line, start_of(line, place), rules, heads)
            if not isinstance(row, Judged) or (row.given_id is None) != bool(word & NAMELESS):
                raise changed(lines.paths[file])
            dataset = lines.datasets[file]
            yield f"{dataset}#{number}" if row.given_id is None else row.given_id, dataset, row
    finally:
        for handle in handles.values():
            os.close(handle)


def read_ids(index: LineIndex, lines: np.ndarray, rules: Rules) -> Iterator[str]:
    """The ids of some rows, in the order of `lines`, not yet made unique."""
    for at in range(0, len(lines), _AT_ONCE):
        for name, _, _ in read(lines_at(index, lines[at : at + _AT_ONCE]), rules):
            yield name


def changed(file: Path | None) -> EyasError:
    return EyasError(
        "an input changed while it was merged",
        file=file,
        mend="leave the inputs alone and run the merge again",
    )


@functools.lru_cache(maxsize=1)
def _heads() -> Heads:
    return Heads()


def named(name: str, dataset: str, row: Judged) -> tuple[bytes, ...]:
    """The pieces of a row's output line."""
    return row.line(orjson.dumps(name), orjson.dumps(dataset))
