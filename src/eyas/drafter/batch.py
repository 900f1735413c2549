"""Rows of one optimiser step, laid out for the unrolled forward.

Conversations lie one after the other; nothing crosses from one to the next, because a slot's keys are
given by its run. With one layer, slots that carry no term only supply step-0 keys and values, so
queries, MLP, head and every later step exist for term slots alone, and slots after a conversation's
last term slot do not exist at all.

Shapes: L tokens of all rows, N step-0 slots of all rows, S slots of a step (S_k of terms.py), P teacher
positions, A aux boundaries, G target hidden.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.states.store import StateRow

from .attention import Run
from .objectives import Preset
from .terms import covered, gates, slot_lives


@dataclass(frozen=True)
class StepSlots:
    """The slots of TTT step k, in order of row and slot t.

    keep: their places among the slots of step k-1 (k = 0: among the N step-0 slots). rows: index of the
    conversation. ids: x_{t+1+k}, which the step reads. positions: t + k. labels: x_{t+2+k}. teachers:
    the place of h_{t+1+k} among the P teacher positions, -1 where the slot has no term: its argmax is
    outside the draft vocabulary, or a preset's gate is shut.
    """

    keep_S: Tensor
    rows_S: Tensor
    ids_S: Tensor
    positions_S: Tensor
    labels_S: Tensor
    teachers_S: Tensor
    runs: list[Run]

    def __len__(self) -> int:
        return len(self.keep_S)


@dataclass(frozen=True)
class Batch:
    """aux, ids (x_{s+1}) and positions of the step-0 slots; last and argmax (a target id) of the teacher
    positions; the slots of each step."""

    aux_NAG: Tensor
    ids_N: Tensor
    positions_N: Tensor
    last_PG: Tensor
    argmax_P: Tensor
    steps: list[StepSlots]
    num_tokens: int

    @property
    def slot_counts(self) -> list[int]:
        """|S_k|."""
        return [len(step) for step in self.steps]

    @property
    def term_counts(self) -> list[int]:
        """N_k = |C_k|."""
        return [int((step.teachers_S >= 0).sum()) for step in self.steps]

    @property
    def num_positions(self) -> int:
        """One past the largest rotary position that a step uses."""
        used = [self.positions_N, *(step.positions_S for step in self.steps)]
        return 1 + max((int(positions.max()) for positions in used if len(positions)), default=-1)


@dataclass(frozen=True)
class _Slots:
    """Every step-0 slot: its conversation, its t, its place among all tokens, its life, its gate at each step."""

    rows_N: Tensor
    t_N: Tensor
    tokens_N: Tensor
    lives_N: Tensor
    gates_KN: Tensor
    starts: list[int]


def make_batch(rows: Sequence[StateRow], t2d_V: Tensor, num_steps: int, preset: Preset = "eyas") -> Batch:
    """Lay out the rows. A row without a slot of step 0 adds nothing but its tokens to the count."""
    slots = _lay_out(rows, num_steps, preset)
    ids_L = torch.cat([row.input_ids_T for row in rows])
    argmax_L = torch.cat([row.teacher_T for row in rows])
    covered_L = covered(argmax_L, t2d_V)
    chosen = [torch.nonzero(slots.lives_N > k).flatten() for k in range(num_steps)]
    teachers = [slots.tokens_N[at_S] + 1 + k for k, at_S in enumerate(chosen)]
    terms = [
        slots.gates_KN[k, at_S] & covered_L[teacher_S]
        for k, (at_S, teacher_S) in enumerate(zip(chosen, teachers, strict=True))
    ]
    needed_L = torch.zeros_like(covered_L)
    for teacher_S, term_S in zip(teachers, terms, strict=True):
        needed_L[teacher_S[term_S]] = True
    place_L = needed_L.cumsum(0) - 1
    steps = []
    for k, at_S in enumerate(chosen):
        steps.append(
            StepSlots(
                keep_S=torch.searchsorted(chosen[k - 1], at_S) if k else at_S,
                rows_S=slots.rows_N[at_S],
                ids_S=ids_L[teachers[k]],
                positions_S=slots.t_N[at_S] + k,
                labels_S=ids_L[teachers[k] + 1],
                teachers_S=torch.where(terms[k], place_L[teachers[k]], -1),
                runs=_runs(at_S, slots),
            )
        )
    lengths = slots.rows_N.bincount(minlength=len(rows)).tolist()
    return Batch(
        aux_NAG=torch.cat([row.aux_TAH[:n].flatten(1) for row, n in zip(rows, lengths, strict=True)]),
        ids_N=ids_L[slots.tokens_N + 1],
        positions_N=slots.t_N,
        last_PG=_teacher_states(rows, needed_L),
        argmax_P=argmax_L[needed_L],
        steps=steps,
        num_tokens=len(ids_L),
    )


def _lay_out(rows: Sequence[StateRow], num_steps: int, preset: Preset) -> _Slots:
    owners, slots, tokens, lives, opened, starts = [], [], [], [], [], []
    first_token = first_slot = 0
    for index, row in enumerate(rows):
        lives_T = slot_lives(row.loss_mask_T, num_steps, preset)
        working = torch.nonzero(lives_T).flatten()
        number = int(working[-1]) + 1 if len(working) else 0
        owners.append(torch.full((number,), index))
        slots.append(torch.arange(number))
        tokens.append(torch.arange(number) + first_token)
        lives.append(lives_T[:number])
        opened.append(gates(row.loss_mask_T, num_steps, preset)[:, :number])
        starts.append(first_slot)
        first_token += len(row)
        first_slot += number
    return _Slots(
        torch.cat(owners), torch.cat(slots), torch.cat(tokens), torch.cat(lives), torch.cat(opened, 1), starts
    )


def _runs(at_S: Tensor, slots: _Slots) -> list[Run]:
    """Maximal runs of consecutive slots of one conversation."""
    if not len(at_S):
        return []
    rows_S = slots.rows_N[at_S]
    breaks = torch.nonzero((at_S.diff() != 1) | (rows_S.diff() != 0)).flatten() + 1
    bounds = [0, *breaks.tolist(), len(at_S)]
    return [
        Run(start, stop, slots.starts[int(rows_S[start])], int(at_S[start]))
        for start, stop in itertools.pairwise(bounds)
    ]


def _teacher_states(rows: Sequence[StateRow], needed_L: Tensor) -> Tensor:
    parts = needed_L.split([len(row) for row in rows])
    return torch.cat([row.last_TH[needed_T] for row, needed_T in zip(rows, parts, strict=True)])
