"""Training rows for the presets: the teacher's argmax where they train slots that the store has none for.

The store holds the argmax wherever the next token is a label, which is all that the design's gate asks for.
Other trainers' gates reach up to two positions past a turn's end; these are computed here, once, before
training, from the stored last hidden states and the full head.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from eyas.states.store import StateRow, StateStore

from .objectives import Preset
from .target_weights import TargetWeights
from .terms import unlabelled_teachers

_CHUNK = 256
"""States whose full-head logits exist at once."""


class CompletedStore:
    """A StateStore whose rows have the missing teachers; everything else is the store's own."""

    def __init__(self, store: StateStore, added: dict[int, tuple[Tensor, Tensor]]) -> None:
        self._store, self._added = store, added

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> StateRow:
        row = self._store[index]
        return dataclasses.replace(row, teacher_T=self._completed(index, row.teacher_T))

    def tokens(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        ids_T, mask_T, teacher_T = self._store.tokens(index)
        return ids_T, mask_T, self._completed(index, teacher_T)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _completed(self, index: int, teacher_T: Tensor) -> Tensor:
        if index not in self._added:
            return teacher_T
        positions, ids = self._added[index]
        return teacher_T.index_copy(0, positions, ids)


def completed(store: StateStore, weights: TargetWeights, num_steps: int, preset: Preset) -> StateStore:
    """The store itself for the design's gate, else one with the teachers that the preset asks for."""
    if preset == "eyas":
        return store
    head_VG, bias_V = weights.head().float(), weights.head_bias()
    rows, positions, states = [], [], []
    for index in range(len(store)):
        _ids_T, mask_T, _teacher_T = store.tokens(index)
        asked = unlabelled_teachers(mask_T, num_steps, preset)
        if len(asked):
            rows.append(index)
            positions.append(asked)
            states.append(store[index].last_TH[asked])
    if not rows:
        return store
    found = torch.cat([_argmax(part, head_VG, bias_V) for part in torch.cat(states).split(_CHUNK)])
    ids = found.split([len(asked) for asked in positions])
    added = dict(zip(rows, zip(positions, ids, strict=True), strict=True))
    return CompletedStore(store, added)  # type: ignore[return-value]


def _argmax(last_cG: Tensor, head_VG: Tensor, bias_V: Tensor | None) -> Tensor:
    """A scale above 0 and a soft cap leave the argmax where it is."""
    bias = None if bias_V is None else bias_V.to(last_cG.dtype)
    return torch.nn.functional.linear(last_cG, head_VG, bias).argmax(-1)
