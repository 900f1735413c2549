"""Compressed files and Parquet as JSON lines, for the two passes that need to read a line again where it lies."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from eyas.core import env
from eyas.core.errors import EyasError
from eyas.core.executor import each
from eyas.merge.inputs import TokenFile

_BLOCK = 1 << 20
_ROWS = 256
_LISTS = ("input_ids", "loss_mask", "loss_mask_runs")
OWN_MARK = b"eyas.rows"
"""Key in the metadata of Parquet files that Eyas wrote."""


def unpacked(files: list[TokenFile], folder: Path, workers: int) -> list[TokenFile]:
    """The files with `text` and `bytes` of what was unpacked into `folder`, where they are packed."""
    tasks = [
        (number, file.path, folder / f"unpacked-{number}")
        for number, file in enumerate(files)
        if not file.path.name.endswith(".jsonl")
    ]
    done = list(files)
    for (number, _, text), _ in each(_unpack, tasks, workers):
        done[number] = replace(done[number], text=text, bytes=text.stat().st_size)
    return done


def _unpack(task: tuple[int, Path, Path]) -> None:
    _, packed, text = task
    with open(text, "wb") as out:
        if packed.name.endswith(".gz"):
            _copy_gzip(packed, out)
        elif packed.name.endswith(".zst"):
            _copy_zstd(packed, out)
        else:
            for line in parquet_lines(packed):
                out.write(line)


def _copy_gzip(packed: Path, out: BinaryIO) -> None:
    try:
        with gzip.open(packed, "rb") as file:
            shutil.copyfileobj(file, out, _BLOCK)
    except (EOFError, gzip.BadGzipFile) as error:
        raise _damaged(packed, error) from error


def _copy_zstd(packed: Path, out: BinaryIO) -> None:
    try:
        import zstandard
    except ImportError as error:
        raise EyasError(
            "reading .zst needs the package zstandard", file=packed, mend="pip install zstandard"
        ) from error
    try:
        with open(packed, "rb") as file:
            zstandard.ZstdDecompressor().copy_stream(file, out, read_size=_BLOCK, write_size=_BLOCK)
    except zstandard.ZstdError as error:
        raise _damaged(packed, error) from error


def parquet_lines(packed: Path) -> Iterator[bytes]:
    """A Parquet file's rows as JSON lines: columns by name, any integer type, loss_mask as values or as runs.

    Runs are what `merge --output-format parquet` writes: lengths of zeros, ones, zeros, ... in turn. Its column
    `extra` holds further keys as the text of a JSON object.
    """
    pyarrow, parquet = require_pyarrow(packed)
    try:
        file = parquet.ParquetFile(packed)
    except pyarrow.ArrowException as error:
        raise _damaged(packed, error) from error
    for column in ("input_ids", "loss_mask"):
        if not {column, f"{column}_runs"} & set(file.schema_arrow.names):
            raise EyasError(
                f"the file has no column {column}",
                file=packed,
                expected="input_ids and loss_mask",
                found=", ".join(file.schema_arrow.names),
                mend="give another file, or leave its dataset out with --exclude",
            )
    is_own = OWN_MARK in (file.schema_arrow.metadata or {})
    for batch in file.iter_batches(batch_size=_ROWS, use_threads=False):
        lists = {name: _lists(batch.column(name)) for name in _LISTS if name in batch.schema.names}
        others = batch.drop_columns([name for name, found in lists.items() if found is not None]).to_pylist()
        for i, row in enumerate(others):
            row.update({name: found[i] for name, found in lists.items() if found is not None})
            if is_own:
                row = _from_own(row)
            yield orjson.dumps(row, default=str, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def _lists(column: Any) -> list[Any] | None:
    """A column of lists of integers as one array a row; None if it is anything else or has gaps."""
    import pyarrow.types as types

    if not (types.is_list(column.type) or types.is_large_list(column.type)):
        return None
    if not types.is_integer(column.type.value_type) or column.null_count or column.values.null_count:
        return None
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy()
    return [values[start:end] for start, end in pairwise(offsets)]


def _from_own(row: dict[str, Any]) -> dict[str, Any]:
    runs = row.pop("loss_mask_runs")
    extra = row.pop("extra")
    return {**row, "loss_mask": np.repeat(np.arange(len(runs)) & 1, runs), **orjson.loads(extra or b"{}")}


def require_pyarrow(file: Path) -> tuple[Any, Any]:
    env.small_arrow_pool()
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EyasError("Parquet needs the package pyarrow", file=file, mend="pip install pyarrow") from error
    return pyarrow, pyarrow.parquet


def _damaged(packed: Path, error: Exception) -> EyasError:
    return EyasError(
        "the file cannot be unpacked", file=packed, found=str(error), mend="fetch or make it again"
    )
