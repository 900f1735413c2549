"""The account of a merge: what came in, what is kept and why the rest is not, per dataset."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from eyas.core.counts import Counts
from eyas.merge.collect import Collected
from eyas.merge.index import DEV
from eyas.merge.options import MergeOptions
from eyas.merge.reasons import INVALID, NOT_SAMPLED, OVER_CAP, OVER_CAP_TOKENS
from eyas.merge.records import REASONS
from eyas.merge.scan import BLANK, KEPT


def dataset_entry(
    name: str, collected: Collected, options: MergeOptions, suffixes: dict[int, int]
) -> dict[str, Any]:
    """One dataset's line of the manifest. Tokens in are those of well-formed records, before the cut."""
    index, records = collected.index, collected.records
    total: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    dropped_tokens: Counter[str] = Counter()
    lines = index.datasets[name]
    for at, run in records.runs(lines):
        kept = run["reason"] == KEPT
        is_dev = np.frombuffer(index.words, np.uint32)[at : at + len(run)] & DEV != 0
        total["records_in"] += int((run["reason"] != BLANK).sum())
        total["records_kept"] += int(kept.sum())
        total["tokens_in"] += _sum(run["tokens_in"])
        total["tokens_kept"] += _sum(run["tokens"][kept])
        total["trainable_tokens"] += _sum(run["labels"][kept])
        total["cut_records"] += int((kept & (run["tokens"] < run["tokens_in"])).sum())
        total["records_at_cap"] += int((kept & (run["tokens_in"] >= options.max_seq_len)).sum())
        total["tokens_cut"] += _sum((run["tokens_in"] - run["tokens"])[run["tokens"] > 0])
        total["dev_records"] += int((kept & is_dev).sum())
        total["dev_tokens"] += _sum(run["tokens"][kept & is_dev])
        for code in np.unique(run["reason"][~kept]).tolist():
            if code != BLANK:
                which = run["reason"] == code
                tokens = np.where(run["tokens"] > 0, run["tokens"], run["tokens_in"])
                dropped[REASONS[code]] += int(which.sum())
                dropped_tokens[REASONS[code]] += _sum(tokens[which])
    return {
        "name": name,
        "role": "heldout" if name in options.heldout else "train",
        **{field: total[field] for field in FIELDS},
        "repeated_ids": sum(lines[0] <= line < lines[1] for line in suffixes),
        "dropped": dict(sorted(dropped.items())),
        "dropped_tokens": {reason: tokens for reason, tokens in sorted(dropped_tokens.items()) if tokens},
    }


FIELDS = (
    "records_in",
    "records_kept",
    "tokens_in",
    "tokens_kept",
    "trainable_tokens",
    "cut_records",
    "records_at_cap",
    "tokens_cut",
    "dev_records",
    "dev_tokens",
)


def totals(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The same fields over all datasets."""
    dropped: Counter[str] = Counter()
    dropped_tokens: Counter[str] = Counter()
    for entry in entries:
        dropped.update(entry["dropped"])
        dropped_tokens.update(entry["dropped_tokens"])
    return {
        **{field: sum(entry[field] for entry in entries) for field in (*FIELDS, "repeated_ids")},
        "dropped": dict(sorted(dropped.items())),
        "dropped_tokens": dict(sorted(dropped_tokens.items())),
    }


def require_kept(entries: list[dict[str, Any]], min_kept: float, examples: dict[str, Any]) -> Counts:
    """The counts of the merge. EyasError if a dataset has too few valid records, or if nothing at all is kept.

    Samples, caps and duplicates do not count against a dataset: the user asked for them.
    """
    whole = Counts()
    for entry in entries:
        counts = Counts(entry["records_in"], entry["records_kept"], Counter(entry["dropped"]))
        whole.add(counts)
        invalid = Counter({reason: n for reason, n in counts.dropped.items() if reason in INVALID})
        valid = Counts(counts.rows_in, counts.rows_in - invalid.total(), invalid)
        if min_kept and valid.rows_in:
            valid.require(min_kept, f"dataset {entry['name']}", _mend(entry["name"], invalid, examples))
    whole.require(0.0, "the merge", "name inputs that hold records, or loosen the samples and caps")
    return whole


def notes(entries: list[dict[str, Any]], options: MergeOptions) -> list[str]:
    """Settings that had no effect."""
    found = []
    for entry in entries:
        name, dropped = entry["name"], entry["dropped"]
        for flag, values, reason in (
            ("--sample", options.sample, NOT_SAMPLED),
            ("--cap", options.cap, OVER_CAP),
            ("--cap-tokens", options.cap_tokens, OVER_CAP_TOKENS),
        ):
            if name in values and reason not in dropped:
                found.append(f"{flag} {name}={values[name]} had no effect: nothing was left out by it")
    if options.dev_fraction and not any(entry["dev_records"] for entry in entries):
        found.append(f"--dev-fraction {options.dev_fraction} had no effect: no row was drawn")
    return found


def _mend(name: str, invalid: Counter[str], examples: dict[str, Any]) -> str:
    places = [
        f"{example['file']}:{example['line']} ({reason})"
        for reason, _ in invalid.most_common()
        for example in examples.get(reason, [])
        if example["dataset"] == name
    ]
    return (
        f"look at {', '.join(places[:3])}; mend the dataset, leave it out with --exclude, or lower --min-kept"
    )


def _sum(values: np.ndarray) -> int:
    return int(values.sum(dtype=np.uint64))
