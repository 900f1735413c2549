"""What every step of a run works on: its rows, its terms, and the parts of it that each process does.

Rows and counts of a step are functions of options and corpus alone, so a run goes on after any step with
any number of processes; only the division into parts depends on their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.states.store import StateStore

from .checkpoint import Position
from .objectives import Preset
from .options import TrainOptions
from .pack import pack_epoch
from .terms import term_counts


@dataclass(frozen=True)
class Schedule:
    """The rows of every step of every epoch. lengths: tokens of each row. terms_RK: |C_k| of each row."""

    epochs: list[list[list[int]]]
    lengths: list[int]
    terms_RK: Tensor

    @classmethod
    def of(cls, store: StateStore, t2d_V: Tensor, options: TrainOptions) -> Schedule:
        lengths, budget, seed = store.lengths, options.tokens_per_step, options.seed
        epochs = [pack_epoch(lengths, budget, seed, epoch) for epoch in range(options.epochs)]
        return cls(epochs, lengths, term_table(store, t2d_V, options.ttt_steps, options.preset))

    @property
    def num_steps(self) -> int:
        return sum(len(steps) for steps in self.epochs)

    def ahead(self, position: Position) -> Iterator[tuple[list[int], Position]]:
        """(rows, the position after them) of every step that is still to do."""
        for epoch in range(position.epoch, len(self.epochs)):
            consumed = 0
            for rows in self.epochs[epoch]:
                consumed += len(rows)
                if epoch == position.epoch and consumed <= position.rows:
                    continue
                yield rows, Position(epoch=epoch, rows=consumed)

    def ends_epoch(self, position: Position) -> bool:
        return position.rows == len(self.lengths)

    def term_counts(self, rows: Sequence[int]) -> list[int]:
        """N_k of a step, over all processes and all of its parts."""
        return [int(count) for count in self.terms_RK[list(rows)].sum(0)]

    def tokens(self, rows: Sequence[int]) -> int:
        return sum(self.lengths[row] for row in rows)

    def tokens_ahead(self, position: Position) -> int:
        return sum(self.tokens(rows) for rows, _ in self.ahead(position))


def term_table(store: StateStore, t2d_V: Tensor, num_steps: int, preset: Preset = "eyas") -> Tensor:
    """|C_k| of every row [rows, K]."""
    counts = []
    for index in range(len(store)):
        _ids_T, mask_T, teacher_T = store.tokens(index)
        counts.append(term_counts(mask_T, teacher_T, t2d_V, num_steps, preset))
    return torch.tensor(counts, dtype=torch.int64).reshape(len(store), num_steps)


def divide(rows: Sequence[int], lengths: Sequence[int], budget: int, processes: int) -> list[list[int]]:
    """The rows of one step as parts of even size, a multiple of `processes` of them and as few as keep each
    within the budget (0: no budget); process r does parts r, r + processes, ...

    Longest rows first, each to the part that has least. Within a part the order of the step is kept. A row over
    the budget is a part of its own; a part may be empty.
    """
    number = processes
    while True:
        parts: list[list[int]] = [[] for _ in range(number)]
        sizes = [0] * number
        for place in sorted(range(len(rows)), key=lambda place: -lengths[rows[place]]):
            least = sizes.index(min(sizes))
            parts[least].append(place)
            sizes[least] += lengths[rows[place]]
        if not budget or all(
            size <= budget or len(part) == 1 for size, part in zip(sizes, parts, strict=True)
        ):
            return [[rows[place] for place in sorted(part)] for part in parts]
        number += processes
