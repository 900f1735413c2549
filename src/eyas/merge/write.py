"""The second pass: rows read where the index says and written, in their final order, as JSON lines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from eyas.core.errors import EyasError
from eyas.core.executor import AHEAD, in_order
from eyas.core.files import appearing
from eyas.core.manifest import Output
from eyas.core.progress import Progress
from eyas.merge.batches import Batch, Batches, Rows
from eyas.merge.options import STAGE
from eyas.merge.reader import changed, named, read
from eyas.merge.slots import Slots, lent, slots

BATCH_BYTES = 4 << 20
"""Bytes of output that one task makes; they are in memory at once."""
_PIECE = 1 << 20
_WRITE_BACK = 32 << 20
"""Bytes that are handed to the disk while the rest is made, or the final fsync takes a tenth of the whole time."""


@dataclass(frozen=True)
class Task:
    """A batch, and where its lines go: from `at` on in the slots at `memory`."""

    batch: Batch
    memory: str
    at: int


@dataclass(frozen=True)
class Tasks:
    """A task for each batch, made when it is asked for."""

    batches: Batches
    slots: Slots

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Task]:
        for number, batch in enumerate(self.batches):
            yield Task(batch, self.slots.path, self.slots.start_of(number))


def write_rows(target: Path, rows: Rows, workers: int) -> Output:
    """Write a file of rows; it appears whole or not at all."""
    batches = Batches(rows, BATCH_BYTES)
    digest = xxhash.xxh3_128()
    with appearing(target) as temporary, open(temporary, "wb", buffering=0) as file:
        handle = file.fileno()
        if batches.bytes:
            # A third of the cost of a file that grows page by page; and a full disk shows at once.
            os.posix_fallocate(handle, 0, batches.bytes)
        done = begun = 0
        with Progress(STAGE, batches.bytes / 1e6, "MB written") as progress:
            for data in _made(batches, workers):
                write_at(handle, data, done)
                digest.update(data)
                progress.advance(len(data) / 1e6)
                done += len(data)
                if done - begun >= _WRITE_BACK:
                    # The kernel begins to write; it drops only what is on the disk.
                    os.posix_fadvise(handle, begun, done - begun, os.POSIX_FADV_DONTNEED)
                    begun = done
    return Output(target.name, batches.bytes, digest.hexdigest(), len(rows.order), rows.tokens)


def _made(batches: Batches, workers: int) -> Iterator[memoryview]:
    """The file's bytes in their order, each piece to be used before the next is asked for.

    Workers make the lines, and this process alone writes them: writers of one file wait for each other in the kernel,
    and their bytes would have to be read again for the digest.
    """
    with slots(AHEAD * workers if workers > 1 else 1, batches.largest) as memory:
        for task, _ in in_order(fill, Tasks(batches, memory), workers):
            with lent(task.memory, task.at, task.batch.size) as data:
                yield data


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


def fill(task: Task) -> None:
    """Make the lines of a batch's rows in the memory lent for it."""
    batch = task.batch
    place = 0
    with lent(task.memory, task.at, batch.size) as view:
        for i, (name, dataset, row) in enumerate(read(batch.lines, batch.rules)):
            line = b"".join(named(unique_name(name, batch.suffixes.get(i)), dataset, row))
            if place + len(line) > batch.size:
                raise changed(None)
            view[place : place + len(line)] = line
            place += len(line)
    if place != batch.size:
        raise changed(None)


def unique_name(name: str, mark: int | None) -> str:
    """A row's id, with the number that makes it unique, if it needs one."""
    return name if mark is None else f"{name}~{mark}"


def write_at(handle: int, data: memoryview, offset: int) -> None:
    """Write all of `data`, a mebibyte at a time: larger calls took up to four times as long in the kernel."""
    while data:
        written = os.pwrite(handle, data[:_PIECE], offset)
        data, offset = data[written:], offset + written
