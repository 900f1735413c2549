"""Row ids that are unique within their dataset, as `core.rows.RowIds` gives them, without keeping them all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eyas.core.rows import RowIds
from eyas.merge.index import SIZE, LineIndex
from eyas.merge.reader import read_ids
from eyas.merge.records import RecordFile
from eyas.merge.repeats import repeats
from eyas.merge.rules import Rules
from eyas.merge.scan import KEPT


def find_suffixes(
    index: LineIndex, records: RecordFile, dataset: str, rules: Rules, has_odd_ids: bool
) -> dict[int, int]:
    """line -> the number after `~` of each row of a dataset whose id an earlier row has. A word's size grows by it.

    Digests of the ids find the repeats. Only where a suffix could meet an id that is there already (ids with `~`, or
    with `#` beside rows without an id) are all ids of the dataset held.
    """
    lines = index.datasets[dataset]

    def runs() -> Iterator[tuple[int, np.ndarray]]:
        for at, run in records.runs(lines):
            yield at, np.where(run["reason"] == KEPT, run["id_hash"], 0).astype(np.uint64)

    found: dict[int, int] = {}
    for repeated, times in repeats(runs, lines[1] - lines[0]):
        found.update(zip(repeated.tolist(), times.tolist(), strict=True))
    if has_odd_ids and (found or _has_nameless(records, lines)):
        found = _exactly(index, records, dataset, rules)
    for line, number in found.items():
        index.words[line] += len(f"~{number}")
        assert index.words[line] & SIZE
    return found


def _has_nameless(records: RecordFile, lines: tuple[int, int]) -> bool:
    return any(((run["reason"] == KEPT) & (run["id_hash"] == 0)).any() for _, run in records.runs(lines))


def _exactly(index: LineIndex, records: RecordFile, dataset: str, rules: Rules) -> dict[int, int]:
    names = RowIds(dataset)
    found = {}
    for lines in records.kept_lines(index.datasets[dataset]):
        for line, base in zip(lines.tolist(), read_ids(index, lines, rules), strict=True):
            name = names.name(base)
            if name != base:
                found[line] = int(name.rpartition("~")[2])
    return found
