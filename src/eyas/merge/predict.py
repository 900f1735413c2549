"""What the merge will keep, said before the first pass: from a 1 % sample, and from upstream manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from eyas.core.errors import EyasError
from eyas.merge.inputs import TokenFile
from eyas.merge.reasons import NO_IDS, NO_MASK
from eyas.merge.records import REASONS
from eyas.merge.rules import Rules
from eyas.merge.scan import BLANK, KEPT, Segment, scan

SHARE = 0.01
_PIECE = 256 << 10

FIELDS = ("records_in", "records", "tokens_in", "tokens")


def predict(files: Sequence[TokenFile], rules: Rules) -> dict[str, Any]:
    """Records and tokens, in and kept, of each dataset and of all; kept means valid, before samples and caps.

    EyasError if no row of a dataset's sample has one of the two columns.
    """
    datasets = {
        name: _dataset(name, list(group), rules) for name, group in groupby(files, lambda file: file.dataset)
    }
    known = all(file.rows is not None for file in files)
    total = {field: sum(entry[field] for entry in datasets.values()) for field in FIELDS}
    return {
        "from": "upstream manifests and a 1 % sample" if known else "a 1 % sample",
        "rows": total["records"],
        **total,
        "datasets": datasets,
    }


def _dataset(name: str, files: list[TokenFile], rules: Rules) -> dict[str, int]:
    total: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for file in files:
        estimate, found = _sample(file, rules)
        total.update(estimate)
        reasons.update(found)
    for column, reason in (("input_ids", NO_IDS), ("loss_mask", NO_MASK)):
        if reasons[reason] and reasons[reason] == sum(reasons.values()):
            raise EyasError(
                f"dataset {name} has no column {column}",
                file=files[0].path,
                expected="rows with input_ids and loss_mask",
                mend=f"tokenize it again, or leave it out with --exclude {name}",
            )
    return {field: total[field] for field in FIELDS}


def _sample(file: TokenFile, rules: Rules) -> tuple[dict[str, int], Counter[str]]:
    """Estimates for a file, and what became of the sampled lines: reasons, and `kept`.

    Lines that begin in evenly spaced pieces stand for all: by the bytes that they have of the file's, so that tokens,
    which go with bytes, are predicted best.
    """
    count = max(1, round(file.bytes * SHARE / _PIECE))
    piece = min(_PIECE, file.bytes)
    starts = [(file.bytes - piece) * (2 * i + 1) // (2 * count) for i in range(count)]
    seen: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for start in starts:
        segment = Segment(file.text, start, start + piece, file.dataset, rules)
        table = scan(segment).table()
        seen["bytes"] += int(table["length"].sum(dtype="u8"))
        table = table[table["reason"] != BLANK]
        kept = table["reason"] == KEPT
        seen["records_in"] += len(table)
        seen["records"] += int(kept.sum())
        seen["tokens_in"] += int(table["tokens_in"].sum(dtype="u8"))
        seen["tokens"] += int(table["tokens"].sum(dtype="u8"))
        found.update("kept" if code == KEPT else REASONS[code] for code in table["reason"].tolist())
    whole = {field: file.bytes / max(seen["bytes"], 1) for field in FIELDS}
    if file.rows is not None and file.tokens is not None:
        whole["records_in"] = whole["records"] = file.rows / max(seen["records_in"], 1)
        whole["tokens_in"] = whole["tokens"] = file.tokens / max(seen["tokens_in"], 1)
    return {field: round(seen[field] * whole[field]) for field in FIELDS}, found
