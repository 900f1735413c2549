"""rows.idx: the source file and line of each row of a merged corpus.

One line of JSON, then two little-endian uint32 a row: the number of its file in that line's `files`, and its line in
that file, from 1. The rows of the row files follow each other in the order of `rows`: train, eval, dev. A compressed
file counts the lines of its text, a Parquet file its rows. Files are named by dataset, name and content digest, never
by where they lie.

    {"format":1,"files":[{"dataset":"B1","name":"tokenized_data.jsonl","digest":"..."}],"rows":{"train":3,...}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from eyas.core.errors import EyasError
from eyas.core.files import appearing
from eyas.merge.index import LineIndex

FILE = "rows.idx"
SPLITS = ("train", "eval", "dev")
_PLACE = np.dtype("<u4")
_ROWS = 1 << 16


def write(folder: Path, index: LineIndex, orders: Mapping[str, np.ndarray]) -> None:
    """orders: the line numbers, in the index, of each split's rows."""
    head = {
        "format": 1,
        "files": [
            {"dataset": file.dataset, "name": file.name, "digest": file.digest} for file in index.files
        ],
        "rows": {split: len(orders[split]) for split in SPLITS},
    }
    with appearing(folder / FILE) as temporary, open(temporary, "wb") as out:
        out.write(orjson.dumps(head) + b"\n")
        for split in SPLITS:
            for at in range(0, len(orders[split]), _ROWS):
                lines = orders[split][at : at + _ROWS].astype(np.int64)
                out.write(
                    np.stack([index.files_of(lines), index.line_numbers(lines)], 1).astype(_PLACE).tobytes()
                )


@dataclass(frozen=True)
class RowsIndex:
    """files: dataset, name and digest of each source. rows: how many rows each split has."""

    path: Path
    files: list[dict[str, str]]
    rows: dict[str, int]
    start: int

    def places(self, split: str, block: int = _ROWS) -> Iterator[np.ndarray]:
        """Arrays [n, 2] (file number, line from 1) of a split's rows in order."""
        before = sum(self.rows[name] for name in SPLITS[: SPLITS.index(split)])
        with open(self.path, "rb") as file:
            for at in range(0, self.rows[split], block):
                count = min(block, self.rows[split] - at)
                file.seek(self.start + (before + at) * 2 * _PLACE.itemsize)
                yield np.frombuffer(file.read(count * 2 * _PLACE.itemsize), _PLACE).reshape(-1, 2)


def read(folder: Path) -> RowsIndex:
    """The head of a rows.idx; EyasError if it is spoiled or of the wrong length."""
    path = folder / FILE
    try:
        with open(path, "rb") as file:
            line = file.readline(1 << 24)
        head: dict[str, Any] = orjson.loads(line)
        index = RowsIndex(path, head["files"], {name: head["rows"][name] for name in SPLITS}, len(line))
    except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EyasError("the row index is missing or spoiled", file=path, found=str(error)) from error
    expected = index.start + 2 * _PLACE.itemsize * sum(index.rows.values())
    if path.stat().st_size != expected:
        raise EyasError(
            "the row index has the wrong length",
            file=path,
            expected=f"{expected} bytes",
            found=path.stat().st_size,
        )
    return index
