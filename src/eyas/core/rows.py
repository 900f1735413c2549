"""Token rows: what every stage after tokenize works on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from .errors import EyasError
from .files import read_lines

GREEDY = "greedy"
"""Flag: the labels are the target's own greedy text."""
EXACT = "exact"
"""Flag: the ids are those that the engine made, never re-encoded text."""
CUT = "cut"
"""Flag: the row was cut at a length limit, so its last turn may lack its end."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation as ids; loss_mask[i] = 1 says that the target generated token i."""

    id: str
    dataset: str
    input_ids: list[int]
    loss_mask: list[int]
    flags: list[str]

    def __post_init__(self) -> None:
        assert len(self.input_ids) == len(self.loss_mask), f"{self.id}: ids and mask differ in length"

    @property
    def num_labels(self) -> int:
        return sum(self.loss_mask)

    @property
    def is_own_greedy_text(self) -> bool:
        """True where the walk equals real decoding: greedy answers with the engine's own ids."""
        return GREEDY in self.flags and EXACT in self.flags

    def line(self) -> bytes:
        """The row as one JSON line with compact separators."""
        fields = {
            "id": self.id,
            "dataset": self.dataset,
            "input_ids": self.input_ids,
            "loss_mask": self.loss_mask,
            "flags": self.flags,
        }
        return orjson.dumps(fields) + b"\n"


def parse_row(line: bytes, file: Path, number: int) -> TokenRow:
    """A token row of a file that Eyas wrote; EyasError if it is none."""
    try:
        fields = orjson.loads(line)
        row = TokenRow(*(fields[name] for name in ("id", "dataset", "input_ids", "loss_mask", "flags")))
    except (orjson.JSONDecodeError, KeyError, TypeError, AssertionError) as error:
        raise EyasError(
            "a line is no token row",
            file=file,
            record=number,
            expected='{"id","dataset","input_ids","loss_mask","flags"} with lists of equal length',
            found=str(error),
            mend="make the file again with `eyas merge`",
        ) from error
    return row


def read_rows(file: Path) -> Iterator[TokenRow]:
    """The token rows of a file in file order."""
    for number, line in read_lines(file):
        yield parse_row(line, file, number)


def turns(loss_mask: Sequence[int]) -> list[tuple[int, int]]:
    """Maximal runs of labels as (p, q), both ends included."""
    found: list[tuple[int, int]] = []
    start = None
    for i, label in enumerate(loss_mask):
        if label and start is None:
            start = i
        elif not label and start is not None:
            found.append((start, i - 1))
            start = None
    if start is not None:
        found.append((start, len(loss_mask) - 1))
    return found


class RowIds:
    """Ids of one dataset's rows: the given id, else `<dataset>#<n>`; a repeated given id gets `~2`, `~3`, ..."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        self.repeated = 0
        self._number = 0
        self._seen: Counter[str] = Counter()
        self._used: set[str] = set()

    def name(self, given: str | int | None) -> str:
        number = self._number
        self._number += 1
        base = f"{self.dataset}#{number}" if given is None else str(given)
        self._seen[base] += 1
        self.repeated += self._seen[base] > 1
        name = base if self._seen[base] == 1 else f"{base}~{self._seen[base]}"
        while name in self._used:
            self._seen[base] += 1
            name = f"{base}~{self._seen[base]}"
        self._used.add(name)
        return name


def lot(seed: int, dataset: str, key: str) -> int:
    """The row's lot (64 bits): caps keep the rows with the lowest lots, samples those below a share.

    A function of seed, dataset and the row's key alone, so a choice never depends on workers or order.
    """
    return xxhash.xxh3_64_intdigest(f"{seed}\0{dataset}\0{key}".encode())


def drawn(keys: Sequence[str], seed: int, dataset: str, cap: int | None, share: float | None) -> list[int]:
    """Indices of the rows kept by `share` (a fraction) and then `cap` (a number), in their own order."""
    lots = [(lot(seed, dataset, key), i) for i, key in enumerate(keys)]
    if share is not None:
        lots = [entry for entry in lots if entry[0] < share * 2**64]
    if cap is not None:
        lots = sorted(lots)[:cap]
    return sorted(i for _, i in lots)
