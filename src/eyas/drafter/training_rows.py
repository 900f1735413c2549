"""The stored rows as training reads them: cut to the token budget if the recipe says so, and with the teacher's
argmax where a preset trains slots that the store has none for.

The store holds the argmax wherever the next token is a label, which is all that the design's gate asks for.
Other trainers' gates reach up to two positions past a turn's end; these are computed here, once, before
training, from the stored last hidden states and the full head.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from eyas.states.store import StateRow, StateStore

from .objectives import Preset
from .options import TrainOptions
from .target_weights import TargetWeights
from .terms import unlabelled_teachers

_CHUNK = 256
"""States whose full-head logits exist at once."""

Added = dict[int, tuple[Tensor, Tensor]]
"""Row -> (positions, argmax) of teachers that the store lacks."""


class TrainingRows(StateStore):
    """A split of which each row has its first `limit` tokens.

    A row that is cut ends like an answer that was cut: nothing is drafted past the cut.
    """

    def __init__(self, store: StateStore, limit: int | None, added: Added) -> None:
        self.manifest, self.shards, self._starts = store.manifest, store.shards, store._starts
        self.limit, self._added = limit, added

    def __getitem__(self, index: int) -> StateRow:
        row = super().__getitem__(index)
        return dataclasses.replace(
            row,
            input_ids_T=row.input_ids_T[: self.limit],
            loss_mask_T=row.loss_mask_T[: self.limit],
            teacher_T=self._teacher(index, row.teacher_T),
            aux_TAH=row.aux_TAH[: self.limit],
            last_TH=row.last_TH[: self.limit],
        )

    def tokens(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        ids_T, mask_T, teacher_T = super().tokens(index)
        return ids_T[: self.limit], mask_T[: self.limit], self._teacher(index, teacher_T)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, as cut."""
        whole, limit = super().lengths, self.limit
        return whole if limit is None else [min(length, limit) for length in whole]

    @property
    def cuts(self) -> dict[str, int]:
        """How many rows are cut, and by how many tokens together."""
        lost = [a - b for a, b in zip(super().lengths, self.lengths, strict=True)]
        return {"rows": sum(n > 0 for n in lost), "tokens": sum(lost)}

    def _teacher(self, index: int, teacher_T: Tensor) -> Tensor:
        teacher_T = teacher_T[: self.limit]
        if index not in self._added:
            return teacher_T
        positions, ids = self._added[index]
        return teacher_T.index_copy(0, positions, ids)


def training_rows(store: StateStore, weights: TargetWeights, options: TrainOptions) -> TrainingRows:
    """The rows for these options; the full head runs only where a preset asks for it."""
    limit = options.tokens_per_step if options.over_budget == "cut" else None
    if options.preset == "eyas":
        return TrainingRows(store, limit, {})
    added = _missing_teachers(TrainingRows(store, limit, {}), weights, options.ttt_steps, options.preset)
    return TrainingRows(store, limit, added)


def _missing_teachers(rows: TrainingRows, weights: TargetWeights, num_steps: int, preset: Preset) -> Added:
    head_VG, bias_V = weights.head().float(), weights.head_bias()
    added: Added = {}
    for index in range(len(rows)):
        _ids_T, mask_T, _teacher_T = rows.tokens(index)
        positions = unlabelled_teachers(mask_T, num_steps, preset)
        if len(positions):
            states = rows[index].last_TH[positions].split(_CHUNK)
            added[index] = positions, torch.cat([_argmax(part, head_VG, bias_V) for part in states])
    return added


def _argmax(last_cG: Tensor, head_VG: Tensor, bias_V: Tensor | None) -> Tensor:
    """A scale above 0 and a soft cap leave the argmax where it is."""
    bias = None if bias_V is None else bias_V.to(last_cG.dtype)
    return torch.nn.functional.linear(last_cG, head_VG, bias).argmax(-1)
