"""What every cut would leave of every dataset, counted in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eyas.core.executor import each
from eyas.core.progress import Progress
from eyas.merge.inputs import TokenFile
from eyas.merge.options import STAGE
from eyas.merge.rules import ID_LIMIT, Rules
from eyas.merge.scan import KEPT, Segment, scan, segments
from eyas.merge.unpack import unpacked

FIELDS = ("records", "tokens", "cut_records")


def count_cuts(
    files: Sequence[TokenFile], cuts: Sequence[int], min_trainable: int, scratch: Path, workers: int
) -> dict[str, dict[int, dict[str, int]]]:
    """dataset -> cut -> records, tokens and cut records that `eyas merge` would keep, before samples and caps."""
    rules = Rules(ID_LIMIT, "token", min_trainable, vocab_size=None)
    texts = unpacked(list(files), scratch, workers)
    pieces = [
        piece for file in texts for piece in segments(file.text, file.bytes, file.dataset, rules, "labels")
    ]
    found = {file.dataset: {cut: dict.fromkeys(FIELDS, 0) for cut in cuts} for file in files}
    with Progress(STAGE, sum(file.bytes for file in texts) / 1e6, "MB read") as progress:
        for piece, (tokens, enough) in each(_row_lengths, pieces, workers):
            progress.advance((piece.end - piece.start) / 1e6)
            for cut, entry in found[piece.dataset].items():
                kept = tokens[enough <= cut]
                entry["records"] += len(kept)
                entry["tokens"] += int(np.minimum(kept, cut).sum(dtype=np.int64))
                entry["cut_records"] += int((kept > cut).sum())
    return found


def _row_lengths(piece: Segment) -> tuple[np.ndarray, np.ndarray]:
    """Of each row of a segment: its tokens, and how many of them hold the labels that it needs."""
    scanned = scan(piece)
    table = scanned.table()
    return table["tokens_in"][table["reason"] == KEPT].copy(), np.array(scanned.enough, np.uint32)
