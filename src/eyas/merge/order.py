"""The order of the corpus: anyone can have it again with Python's own library."""

from __future__ import annotations

import random
from array import array

RULE = "random.Random(seed).shuffle over the kept training rows in input order (dataset, file name, line)"


def shuffle(rows: array[int], seed: int) -> None:
    """Shuffle in place: the order that `random.Random(seed).shuffle` gives any list of that length."""
    random.Random(seed).shuffle(rows)
