"""A file of records -> the conversations of one dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.files import read_lines
from eyas.core.rows import RowIds

from .conversation import Conversation
from .formats import UnreadableRecord, messages_of, tools_of

_ID_KEYS = ("id", "question_id", "task_id")


@dataclass(frozen=True)
class DatasetRead:
    """The conversations of a file in file order, what was dropped, and how many given ids repeat."""

    conversations: list[Conversation]
    counts: Counts
    repeated_ids: int


def read_dataset(file: Path, dataset: str) -> DatasetRead:
    """Read a `.jsonl` or `.json` file; EyasError if there is no such file or no readable record in it."""
    if not file.is_file():
        raise EyasError(
            f"the file of dataset {dataset} does not exist", file=file, mend="correct `path` in the recipe"
        )
    ids, counts, found = RowIds(dataset), Counts(), []
    for record in _records(file):
        given = (
            record.get(next((k for k in _ID_KEYS if k in record), "")) if isinstance(record, dict) else None
        )
        name = ids.name(given if isinstance(given, (str, int)) else None)
        try:
            found.append(Conversation(name, dataset, messages_of(record), tools_of(record)))
            counts.keep()
        except UnreadableRecord as reason:
            counts.drop(f"unreadable: {reason}")
    if counts.rows_in == 0:
        raise EyasError(
            f"dataset {dataset} is empty", file=file, expected="at least one record", mend="give another file"
        )
    counts.require(
        0.0, f"dataset {dataset} has no readable record", "use OpenAI messages, ShareGPT or Alpaca records"
    )
    return DatasetRead(found, counts, ids.repeated)


def _records(file: Path) -> Iterator[Any]:
    """JSON lines, or one JSON array; told apart by content, as `.json` files are often JSON lines."""
    with open(file, "rb") as opened:
        is_array = opened.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if is_array and file.suffix != ".jsonl":
        try:
            yield from orjson.loads(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))
        except orjson.JSONDecodeError as error:
            raise EyasError(
                "not a valid JSON array", file=file, found=str(error), mend="repair the file"
            ) from error
        return
    for number, line in read_lines(file):
        try:
            yield orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
        except orjson.JSONDecodeError as error:
            raise EyasError(
                "a line is not valid JSON",
                file=file,
                record=number,
                found=str(error),
                mend="repair or remove the line",
            ) from error
