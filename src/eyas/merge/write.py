"""The second pass: rows read where the index says and written, in their final order, as JSON lines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
import xxhash

from eyas.core.errors import EyasError
from eyas.core.executor import each
from eyas.core.files import appearing
from eyas.core.manifest import Output
from eyas.core.progress import Progress
from eyas.merge.index import LineIndex
from eyas.merge.options import STAGE
from eyas.merge.reader import Lines, changed, lines_at, named, read
from eyas.merge.rules import Rules

BATCH_BYTES = 4 << 20
"""Bytes of output that one task makes; they are in memory at once."""
_ROWS_AT_ONCE = 1 << 14
_PIECE = 1 << 20
_WRITE_BACK = 32 << 20
"""Bytes that are handed to the disk while the rest is made, or the final fsync takes a tenth of the whole time."""


@dataclass(frozen=True)
class Batch:
    """Rows that follow each other in the output from `offset` on, `size` bytes of them.

    suffixes: row of the batch -> the number that makes its id unique.
    """

    output: Path
    offset: int
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


class Batches(Sequence[Batch]):
    """The rows of one file in their order, cut into batches, each made when it is asked for."""

    def __init__(self, output: Path, rows: Rows, size: int) -> None:
        self.output, self.rows = output, rows
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

    def __len__(self) -> int:
        return len(self._firsts) - 1 if len(self.rows.order) else 0

    @overload
    def __getitem__(self, number: int) -> Batch: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Batch]: ...
    def __getitem__(self, number: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        rows = self.rows
        lines = rows.order[self._firsts[number] : self._firsts[number + 1]]
        marks = rows.suffixes
        return Batch(
            output=self.output,
            offset=self._offsets[number],
            size=self._offsets[number + 1] - self._offsets[number],
            lines=lines_at(rows.index, lines),
            suffixes={i: marks[line] for i, line in enumerate(lines.tolist()) if line in marks}
            if marks
            else {},
            rules=rows.rules,
        )


def write_rows(target: Path, rows: Rows, workers: int) -> Output:
    """Write a file of rows; it appears whole or not at all."""
    digest = xxhash.xxh3_128()
    with appearing(target) as temporary:
        batches = Batches(temporary, rows, BATCH_BYTES)
        with open(temporary, "w+b", buffering=0) as file:
            handle = file.fileno()
            if (
                batches.bytes
            ):  # a third of the cost of a file that grows page by page; a full disk shows at once
                os.posix_fallocate(handle, 0, batches.bytes)
            with Progress(STAGE, batches.bytes / 1e6, "MB written") as progress:
                done = begun = 0
                for chunk in _written(batches, handle, workers):
                    digest.update(chunk)
                    progress.advance(len(chunk) / 1e6)
                    done += len(chunk)
                    if (
                        done - begun >= _WRITE_BACK
                    ):  # the kernel begins to write; it drops only what is on the disk
                        os.posix_fadvise(handle, begun, done - begun, os.POSIX_FADV_DONTNEED)
                        begun = done
    return Output(target.name, batches.bytes, digest.hexdigest(), len(rows.order), rows.tokens)


def _written(batches: Batches, handle: int, workers: int) -> Iterator[bytes]:
    """Write all batches; gives the file's bytes in their order."""
    if workers <= 1:
        for batch in batches:
            data = rendered(batch)
            write_at(handle, data, batch.offset)
            yield data
        return
    sizes: dict[int, int] = {}
    at = 0
    for batch, _ in each(write_batch, batches, workers):
        sizes[batch.offset] = batch.size
        while at in sizes:  # read back what is there, while the workers write on
            end = at + sizes.pop(at)
            while at < end:
                chunk = os.pread(handle, min(_PIECE, end - at), at)
                assert chunk, "the output is shorter than what was written"
                yield chunk
                at += len(chunk)


def require_space(folder: Path, size: int) -> None:
    """EyasError if the disk that `folder` is on has no room for `size` bytes more."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise EyasError(
            "the disk has no room for the corpus",
            file=folder,
            expected=f"{size:,} bytes free",
            found=f"{free:,} bytes",
            mend="free space, choose another --out, or exclude or cap datasets",
        )


def write_batch(batch: Batch) -> None:
    """Write a batch's rows to their place in the output."""
    handle = os.open(batch.output, os.O_WRONLY)
    try:
        write_at(handle, rendered(batch), batch.offset)
    finally:
        os.close(handle)


def rendered(batch: Batch) -> bytes:
    """The lines of a batch's rows."""
    marks = batch.suffixes
    pieces: list[bytes] = []
    for i, (name, dataset, row) in enumerate(read(batch.lines, batch.rules)):
        pieces += named(unique_name(name, marks.get(i)), dataset, row)
    data = b"".join(pieces)
    if len(data) != batch.size:
        raise changed(None)
    return data


def unique_name(name: str, mark: int | None) -> str:
    """A row's id, with the number that makes it unique, if it needs one."""
    return name if mark is None else f"{name}~{mark}"


def write_at(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data`, a mebibyte at a time: larger calls took up to four times as long in the kernel."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view[:_PIECE], offset)
        view, offset = view[written:], offset + written
