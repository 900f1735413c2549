"""The second pass: the rows, read where the index says, written in their final order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from ..core.errors import EyasError
from .index import NAMELESS, SLOW, LineIndex
from .rules import Judged, Rules, judge
from .scan import BOM

BATCH_BYTES = 4 << 20
"""Bytes of output that one task makes; they are in memory at once."""
_BATCH_ROWS = 1 << 14


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other in the output from `offset` on; arrays have an entry per row."""

    output: Path
    offset: int
    size: int
    paths: list[Path]
    datasets: list[str]
    files: np.ndarray
    places: np.ndarray
    lengths: np.ndarray
    words: np.ndarray
    numbers: np.ndarray
    suffixes: dict[int, int]
    rules: Rules


def batches(
    output: Path, index: LineIndex, order: np.ndarray, suffixes: dict[int, int], rules: Rules
) -> Iterator[Batch]:
    """The output's rows, `order` being line numbers of the index."""
    offset = 0
    ranges = index.dataset_ranges()
    datasets = [file.dataset for file in index.files]
    firsts = np.array([ranges[dataset][0] for dataset in datasets])
    for at in range(0, len(order), _BATCH_ROWS):
        some = order[at : at + _BATCH_ROWS].astype(np.int64)
        ends = np.cumsum(index.sizes(some))
        begin = 0
        while begin < len(some):
            written = int(ends[begin - 1]) if begin else 0
            end = max(int(np.searchsorted(ends, written + BATCH_BYTES, side="right")), begin + 1)
            lines = some[begin:end]
            files = index.files_of(lines)
            size = int(ends[end - 1]) - written
            yield Batch(
                output=output,
                offset=offset,
                size=size,
                paths=[file.path for file in index.files],
                datasets=datasets,
                files=files,
                places=index.places(lines),
                lengths=np.frombuffer(index.lengths, np.uint32)[lines],
                words=np.frombuffer(index.words, np.uint32)[lines],
                numbers=index.record_numbers(lines, firsts[files]),
                suffixes={i: suffixes[line] for i, line in enumerate(lines.tolist()) if line in suffixes},
                rules=rules,
            )
            offset += size
            begin = end


def write_batch(batch: Batch) -> int:
    """Write a batch's rows to their place in the output; the bytes written."""
    data = b"".join(render(batch))
    if len(data) != batch.size:
        raise EyasError(
            "an input changed while it was merged", file=batch.output, mend="leave the inputs alone and merge again"
        )
    handle = os.open(batch.output, os.O_WRONLY)
    try:
        os.pwrite(handle, data, batch.offset)
    finally:
        os.close(handle)
    return len(data)


def render(batch: Batch) -> Iterator[bytes]:
    """The output lines of a batch."""
    names = [orjson.dumps(dataset) for dataset in batch.datasets]
    handles = {file: os.open(batch.paths[file], os.O_RDONLY) for file in set(batch.files.tolist())}
    try:
        columns = (batch.files, batch.places, batch.lengths, batch.words, batch.numbers)
        for i, (file, place, length, word, number) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            line = os.pread(handles[file], length, place)
            if place == 0 and line.startswith(BOM):
                line = line[len(BOM) :]
            line = line.removesuffix(b"\n")
            assert word & SLOW
            row = judge(line, batch.rules)
            if not isinstance(row, Judged):
                raise EyasError(
                    "an input changed while it was merged", file=batch.paths[file], mend="leave it alone and merge again"
                )
            if word & NAMELESS:
                name = f"{batch.datasets[file]}#{number}"
            else:
                assert row.given_id is not None
                name = row.given_id
            if i in batch.suffixes:
                name += f"~{batch.suffixes[i]}"
            yield row.line(orjson.dumps(name), names[file])
    finally:
        for handle in handles.values():
            os.close(handle)
