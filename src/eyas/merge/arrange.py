"""Which rows go into which file, and in which order."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eyas.merge.batches import Rows
from eyas.merge.collect import Collected
from eyas.merge.index import DEV
from eyas.merge.reader import read_ids
from eyas.merge.rules import Rules

ORDER = "random.Random(seed).shuffle over the kept training rows in input order (dataset, file name, line)"
"""The rule of the training rows' order; anyone can have it again with Python's own library."""

SPLITS = ("train", "eval", "dev")


def shuffle(rows: array[int], seed: int) -> None:
    """Shuffle in place, as `random.Random(seed).shuffle` shuffles any list of that length."""
    random.Random(seed).shuffle(rows)


def arrange(
    collected: Collected,
    entries: Sequence[Mapping[str, Any]],
    suffixes: dict[int, int],
    rules: Rules,
    seed: int,
) -> dict[str, Rows]:
    """The rows of each file: those for training shuffled, the others by dataset and id."""
    splits = {}
    for split in SPLITS:
        lines = array("I")
        tokens = 0
        for entry in entries:
            if (entry["role"] == "heldout") == (split == "eval"):
                _extend(lines, collected, entry["name"], split == "dev")
                tokens += (
                    entry["dev_tokens"] if split == "dev" else entry["tokens_kept"] - entry["dev_tokens"]
                )
        if split == "train":
            shuffle(lines, seed)
        order = np.frombuffer(lines, np.uint32)
        if split != "train":
            order = _by_id(collected, order, suffixes, rules)
        splits[split] = Rows(collected.index, order, suffixes, rules, tokens)
    return splits


def _extend(lines: array[int], collected: Collected, dataset: str, is_dev: bool) -> None:
    words = np.frombuffer(collected.index.words, np.uint32)
    for kept in collected.records.kept_lines(collected.index.datasets[dataset]):
        lines.frombytes(kept[(words[kept] & DEV != 0) == is_dev].tobytes())


def _by_id(collected: Collected, lines: np.ndarray, suffixes: dict[int, int], rules: Rules) -> np.ndarray:
    """The lines in the order of dataset and id; datasets lie in order already."""
    index = collected.index
    datasets = [index.files[file].dataset for file in index.files_of(lines).tolist()]
    names = []
    for line, name in zip(lines.tolist(), read_ids(index, lines, rules), strict=True):
        names.append(f"{name}~{suffixes[line]}" if line in suffixes else name)
    order = sorted(range(len(lines)), key=lambda i: (datasets[i], names[i]))
    return lines[order]
