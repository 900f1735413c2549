"""Which of the valid rows stay, and which go to the development file.

Every choice is by a row's lot (`core.rows.lot`), a function of seed, dataset and the row's line (its id for the
development split), so none depends on other datasets, on workers or on the order of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eyas.core.rows import lot
from eyas.merge.collect import Collected
from eyas.merge.index import DEV, LineIndex
from eyas.merge.names import find_suffixes
from eyas.merge.options import MergeOptions
from eyas.merge.reasons import DUPLICATE, NOT_SAMPLED, OVER_CAP, OVER_CAP_TOKENS
from eyas.merge.records import RecordFile
from eyas.merge.repeats import repeats
from eyas.merge.rules import Rules
from eyas.merge.scan import KEPT, id_digest

_KEYS_AT_ONCE = 1 << 16


def choose(collected: Collected, options: MergeOptions, rules: Rules) -> dict[int, int]:
    """Drop duplicates, make ids unique, drop what samples and caps leave out, mark the development rows.

    Gives line -> number of the suffix that makes its row's id unique.
    """
    index, records = collected.index, collected.records
    if options.dedup:
        drop_duplicates(records, collected.keys, len(index))
    suffixes: dict[int, int] = {}
    for name, lines in index.datasets.items():
        suffixes.update(find_suffixes(index, records, name, rules, name in collected.odd_ids))
        if name in options.sample:
            drop_unsampled(records, lines, name, options.sample[name], options.seed)
        drop_over_cap(records, lines, name, options.seed, options.cap.get(name), options.cap_tokens.get(name))
        if options.dev_fraction and name not in options.heldout:
            mark_development(index, records, lines, name, options.dev_fraction, options.seed)
    return suffixes


def drop_duplicates(records: RecordFile, keys: Path, total: int) -> None:
    """Drop rows whose ids and mask an earlier row has; `keys` has 16 bytes a line, zeros where there is no row."""

    def runs() -> Iterator[tuple[int, np.ndarray]]:
        with open(keys, "rb") as file:
            for at in range(0, total, _KEYS_AT_ONCE):
                yield at, np.frombuffer(file.read(16 * _KEYS_AT_ONCE), np.uint64).reshape(-1, 2)

    for lines, _ in repeats(runs, total):
        lines = np.sort(lines).astype(np.int64)
        for at, run in records.runs((0, total)):
            first, end = np.searchsorted(lines, (at, at + len(run)))
            if first < end:
                which = np.zeros(len(run), bool)
                which[lines[first:end] - at] = True
                records.drop(at, run, which, DUPLICATE)


def line_lot(seed: int, dataset: str, line: int) -> int:
    """The lot of a line; lines are numbered from 1 through the dataset's files, blank ones too."""
    return lot(seed, dataset, str(line))


def drop_unsampled(
    records: RecordFile, lines: tuple[int, int], dataset: str, share: float, seed: int
) -> None:
    """Drop the rows of a dataset whose lot is not below `share`."""
    limit = share * 2**64
    for at, run in records.runs(lines):
        lots = _lots(run, at, lines[0], dataset, seed)
        which = np.array([drawn is not None and drawn >= limit for drawn in lots], bool)
        records.drop(at, run, which, NOT_SAMPLED)


def drop_over_cap(
    records: RecordFile,
    lines: tuple[int, int],
    dataset: str,
    seed: int,
    cap: int | None,
    cap_tokens: int | None,
) -> None:
    """Keep the rows with the lowest lots: at most `cap` of them, and as many as fit in `cap_tokens` together."""
    if cap is not None:
        _drop_from(records, lines, dataset, seed, cap, by_tokens=False)
    if cap_tokens is not None:
        _drop_from(records, lines, dataset, seed, cap_tokens, by_tokens=True)


def _drop_from(
    records: RecordFile, lines: tuple[int, int], dataset: str, seed: int, room: int, by_tokens: bool
) -> None:
    """Drop the rows from the first lot on that has no room; the lowest lots are all that is ever held."""
    best: list[tuple[int, int, int]] = []
    for at, run in records.runs(lines):
        sizes = run["tokens"].tolist() if by_tokens else [1] * len(run)
        lots = _lots(run, at, lines[0], dataset, seed)
        best += [(drawn, at + i, sizes[i]) for i, drawn in enumerate(lots) if drawn is not None]
        best.sort()
        taken = np.cumsum([size for _, _, size in best])
        best = best[: int(np.searchsorted(taken, room, side="right")) + 1]
    if sum(size for _, _, size in best) <= room:
        return
    limit = best[-1][:2]
    reason = OVER_CAP_TOKENS if by_tokens else OVER_CAP
    for at, run in records.runs(lines):
        lots = _lots(run, at, lines[0], dataset, seed)
        which = np.array(
            [drawn is not None and (drawn, at + i) >= limit for i, drawn in enumerate(lots)], bool
        )
        records.drop(at, run, which, reason)


def _lots(run: np.ndarray, at: int, first: int, dataset: str, seed: int) -> list[int | None]:
    """The lot of each kept row of a run, None for the others."""
    kept = (run["reason"] == KEPT).tolist()
    return [line_lot(seed, dataset, at + i - first + 1) if keep else None for i, keep in enumerate(kept)]


def mark_development(
    index: LineIndex, records: RecordFile, lines: tuple[int, int], dataset: str, share: float, seed: int
) -> None:
    """Mark the rows of a dataset whose id's lot is below `share`: rows with equal ids go to the same side."""
    limit = share * 2**64
    for at, run in records.runs(lines):
        kept = np.flatnonzero(run["reason"] == KEPT)
        numbers = index.record_numbers(kept + at).tolist()
        hashes = run["id_hash"][kept].tolist()
        for i, number, id_hash in zip(kept.tolist(), numbers, hashes, strict=True):
            if development_lot(seed, dataset, id_hash or id_digest(f"{dataset}#{number}")) < limit:
                index.words[at + i] |= DEV


def development_lot(seed: int, dataset: str, digest: int) -> int:
    """The lot of a row id for the development split; `digest` is the id's xxh3-64."""
    return lot(seed, dataset, f"dev {digest}")
