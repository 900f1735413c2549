"""The corpus as Parquet: ids as int32, the mask as runs, both a quarter of the size of their text.

Columns: id, dataset, input_ids, loss_mask_runs (lengths of zeros, ones, zeros, ... in turn), flags, extra (further
keys as the text of a JSON object, or null). The bytes of an id are stored apart from each other
(BYTE_STREAM_SPLIT), as the low ones are noise and the high ones mostly zeros: 13.8 bits an id instead of 16.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from eyas.core.digest import read_digest
from eyas.core.executor import in_order
from eyas.core.files import appearing
from eyas.core.manifest import Output
from eyas.core.progress import Progress
from eyas.merge.batches import Batch, Batches, Rows
from eyas.merge.fast import labels_of
from eyas.merge.options import STAGE
from eyas.merge.reader import changed, read
from eyas.merge.unpack import OWN_MARK, require_pyarrow
from eyas.merge.write import unique_name

GROUP_BYTES = 8 << 20
"""Bytes of JSON text that make a row group: about a million ids."""
_PIECE = 256 << 10
_LEVEL = 1
"""Of zstd: higher levels find chance matches in ids and make the file larger."""


def write_parquet(target: Path, rows: Rows, workers: int) -> Output:
    """Write a file of rows; it appears whole or not at all."""
    _, parquet = require_pyarrow(target)
    schema = _schema()
    with appearing(target) as temporary:
        batches = Batches(rows, GROUP_BYTES)
        with (
            Progress(STAGE, batches.bytes / 1e6, "MB packed") as progress,
            parquet.ParquetWriter(
                temporary,
                schema,
                compression="zstd",
                compression_level=_LEVEL,
                use_dictionary=["dataset", "flags.list.element"],
                column_encoding={"input_ids.list.element": "BYTE_STREAM_SPLIT"},
                write_statistics=False,
            ) as writer,
        ):
            for batch, columns in in_order(encode, batches, workers):
                writer.write_batch(_record_batch(columns, schema))
                progress.advance(batch.size / 1e6)
        digest, size = read_digest(temporary), temporary.stat().st_size
    return Output(target.name, size, digest, len(rows.order), rows.tokens)


def encode(batch: Batch) -> dict[str, Any]:
    """The columns of a batch: texts, and int32 values with their offsets."""
    names, datasets, flags, extras = [], [], [], []
    ids: list[bytes] = []
    lengths, runs = [0], [np.empty(0, np.int32)]
    for i, (name, dataset, row) in enumerate(read(batch.lines, batch.rules)):
        names.append(unique_name(name, batch.suffixes.get(i)))
        datasets.append(dataset)
        flags.append(orjson.loads(row.flags))
        extras.append(b"{" + row.extra[1:] + b"}" if row.extra else None)
        ids.append(row.ids)
        lengths.append(row.tokens)
        runs.append(mask_runs(row.mask))
    values = parse_ids(ids)
    if len(values) != sum(lengths):
        raise changed(None)
    return {
        "id": names,
        "dataset": datasets,
        "input_ids": (np.cumsum(lengths, dtype=np.int32), values),
        "loss_mask_runs": (np.cumsum([len(run) for run in runs], dtype=np.int32), np.concatenate(runs)),
        "flags": flags,
        "extra": extras,
    }


def mask_runs(mask: bytes) -> np.ndarray:
    """Lengths of the runs of a row's mask, int32; the first is of zeros and may be empty."""
    labels = labels_of(mask)
    edges = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    first = [0, 0] if labels[0] else [0]
    return np.diff(np.concatenate([first, edges, [len(labels)]])).astype(np.int32)


def parse_ids(texts: Sequence[bytes]) -> np.ndarray:
    """The integers of texts like `1,22, 333`, all together, int32."""
    pieces, piece, size = [np.empty(0, np.int32)], [], 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= _PIECE:
            pieces.append(_parse(b",".join(piece)))
            piece, size = [], 0
    if piece:
        pieces.append(_parse(b",".join(piece)))
    return np.concatenate(pieces)


def _parse(text: bytes) -> np.ndarray:
    """Two digits, then four, then eight are put together at every byte at once; ends of numbers are picked last."""
    padded = np.zeros(len(text) + 9, np.uint8)
    padded[8:-1] = np.frombuffer(text, np.uint8)
    values = padded - np.uint8(48)
    is_digit = values < 10
    ends = np.flatnonzero(is_digit[:-1] & ~is_digit[1:])
    values *= is_digit
    two = values.copy()
    two[1:] += values[:-1] * np.uint8(10)
    pairs = is_digit[1:] & is_digit[:-1]  # pairs[i]: digits at i and i + 1
    triples = pairs[1:] & is_digit[:-2]
    four = two.astype(np.uint16)
    four[2:] += two[:-2] * (triples * np.uint16(100))
    fives = triples[2:] & pairs[:-3]
    if (fives[4:] & fives[:-4]).any():  # nine digits: a few ids over 99,999,999
        return np.array(orjson.loads(b"[" + text + b"]"), np.int32)
    return four[ends] + np.int32(10_000) * (four[ends - 4] * fives[ends - 4])


def _schema() -> Any:
    import pyarrow as pa

    def list_of(kind: Any) -> Any:
        return pa.list_(pa.field("element", kind, nullable=False))

    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("dataset", pa.string(), nullable=False),
            pa.field("input_ids", list_of(pa.int32()), nullable=False),
            pa.field("loss_mask_runs", list_of(pa.int32()), nullable=False),
            pa.field("flags", list_of(pa.string()), nullable=False),
            pa.field("extra", pa.string()),
        ],
        metadata={OWN_MARK: b"1"},
    )


def _record_batch(columns: dict[str, Any], schema: Any) -> Any:
    import pyarrow as pa

    arrays = []
    for field in schema:
        values = columns[field.name]
        if isinstance(values, tuple):
            arrays.append(pa.ListArray.from_arrays(*map(pa.array, values), type=field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.record_batch(arrays, schema=schema)
