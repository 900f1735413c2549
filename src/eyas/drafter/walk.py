"""The walk: the accept length of a chain of drafts, without decoding.

On rows that are the target's own greedy text, step k at slot t is the very state that a server has when
it drafts there, so a walk over the unrolled steps gives its rounds one by one. Source: docs/design.md
section 2. On answers that the target sampled it gives the rounds of greedy drafts for those answers, and
expectation.py those of sampled drafts. On all other text it is teacher-forced: the drafter is scored on words
that its target may never say, and nothing follows for serving.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.core.rows import turns
from eyas.states.store import StateRow, StateStore

from .accuracy import Accuracy
from .batch import Batch, make_batch
from .coverage import Coverage, FullHead
from .device import on_device
from .expectation import expected_rounds
from .network import Drafter
from .rope import Rotary
from .unroll import unroll
from .walk_figures import SAMPLED_ANSWER, RowWalk, Walk, kind_of

NO_DRAFT = -1
"""A slot where nothing is drafted, or where the draft is known to miss."""


def walk_rounds(
    input_ids: Sequence[int],
    loss_mask: Sequence[int],
    drafts: Sequence[Sequence[int]],
    limit: int | None = None,
) -> list[int]:
    """Tokens emitted in each round, turn after turn.

    drafts[k][t] is the target id that step k drafts at slot t for x_{t+2+k}, NO_DRAFT where there is none;
    it is read only where x_{t+1} .. x_{t+2+k} are labels of one turn. limit: each turn is cut to its first
    `limit` tokens. The first token of a turn comes from the prefill and is in no round.
    """
    rounds = []
    for first, end in turns(loss_mask):
        last = end if limit is None else min(end, first + limit - 1)
        slot = first - 1
        while slot + 1 < last:
            right = 0
            while (
                right < len(drafts)
                and slot + 2 + right <= last
                and slot >= 0
                and drafts[right][slot] == input_ids[slot + 2 + right]
            ):
                right += 1
            emitted = min(right + 1, last - slot - 1)
            rounds.append(emitted)
            slot += emitted
    return rounds


def walk_store(
    drafter: Drafter,
    store: StateStore | Sequence[StateRow],
    drafts: int,
    limit: int | None = None,
    head: FullHead | None = None,
    temperature: float = 1.0,
) -> Walk:
    """Walk every row of a split; `drafts` steps are unrolled whatever the drafter was trained for.

    head: the target's, for the coverage of the draft vocabulary and the expectation for sampled drafts.
    """
    rotary = Rotary(drafter.config)
    walk = Walk(drafts, limit, temperature=temperature)
    for index in range(len(store)):
        _walk_row(drafter, rotary, store[index], walk, head)
    return walk


@torch.inference_mode()
def _walk_row(drafter: Drafter, rotary: Rotary, row: StateRow, walk: Walk, head: FullHead | None) -> None:
    t2d_V = drafter.t2d.cpu()
    batch = make_batch([row], t2d_V, walk.drafts)
    kind = kind_of(row)
    sampled = head is not None and kind == SAMPLED_ANSWER
    there = on_device(batch, drafter.d2t.device)
    drafted, chances = _drafts(drafter, rotary, there, walk.temperature if sampled else None)
    known = [t2d_V[step.labels_S] for step in batch.steps]
    best = [
        torch.where(inside, step.labels_S, NO_DRAFT) for step, inside in zip(batch.steps, known, strict=True)
    ]
    ids, mask = row.input_ids_T.tolist(), row.loss_mask_T.tolist()
    seen_T = _look(row, t2d_V, walk, head) if head is not None else None
    for rows, chosen in ((walk.rows, drafted), (walk.ceilings, best)):
        rounds = walk_rounds(ids, mask, _by_slot(batch, chosen, len(row)), walk.limit)
        expectation = None
        if sampled and chosen is drafted:
            assert seen_T is not None
            expectation = expected_rounds(mask, _accepts(batch, chances, seen_T), walk.limit)
        rows.append(RowWalk(row.dataset, row.id, kind, rounds, expectation))
    hits = [ids_S == step.labels_S for step, ids_S in zip(batch.steps, drafted, strict=True)]
    accuracy = walk.accuracies.setdefault(row.dataset, Accuracy(walk.drafts))
    accuracy.add(hits, [step.keep_S for step in batch.steps])
    outside = walk.outside.setdefault(row.dataset, [0] * walk.drafts)
    for k, inside_S in enumerate(known):
        outside[k] += int((~inside_S).sum())


def _look(row: StateRow, t2d_V: Tensor, walk: Walk, head: FullHead) -> Tensor:
    """Count the row's coverage; the target's log chance [T] of each label, at the walk's temperature."""
    before_L = torch.nonzero(row.loss_mask_T[1:]).flatten()
    labels_L = row.input_ids_T[before_L + 1]
    mass_L, log_chance_L = head.read(row.last_TH[before_L], labels_L, t2d_V, walk.temperature)
    coverage = walk.coverages.setdefault(row.dataset, Coverage())
    coverage.add(mass_L, row.teacher_T[before_L], labels_L, t2d_V)
    log_chance_T = torch.zeros(len(row))
    log_chance_T[before_L + 1] = log_chance_L
    return log_chance_T


def _drafts(
    drafter: Drafter, rotary: Rotary, batch: Batch, temperature: float | None
) -> tuple[list[Tensor], list[Tensor]]:
    """For each step the target id drafted at each slot [S_k], the lower draft id winning a tie; and, where a
    temperature is given, the drafter's log chance of the label [S_k], -inf outside the draft vocabulary. Both lie
    on the CPU, wherever the drafter and the batch are."""
    drafted: list[Tensor] = []
    chances: list[Tensor] = []
    for step, output_SH in zip(batch.steps, unroll(drafter, rotary, batch), strict=False):
        logits_SR = drafter.logits(output_SH)
        drafted.append(drafter.target_ids_R[logits_SR.argmax(-1)].cpu())
        if temperature is not None:
            place_S = torch.searchsorted(drafter.target_ids_R, step.labels_S).clamp(
                max=logits_SR.shape[1] - 1
            )
            log_S = (logits_SR / temperature).log_softmax(-1).gather(-1, place_S.unsqueeze(-1)).squeeze(-1)
            chances.append(torch.where(drafter.t2d[step.labels_S], log_S, -torch.inf).cpu())
    empty = torch.empty(0, dtype=torch.int64)
    return drafted + [empty] * (len(batch.steps) - len(drafted)), chances


def _accepts(batch: Batch, chances: Sequence[Tensor], log_chance_T: Tensor) -> list[list[float]]:
    """min(1, q / p) of each step at each slot of the one row of a batch."""
    accepts = []
    for k, step in enumerate(batch.steps):
        accept_T = torch.zeros(len(log_chance_T))
        if k < len(chances):
            slots_S = step.positions_S - k
            accept_T[slots_S] = (chances[k] - log_chance_T[slots_S + 2 + k]).clamp(max=0.0).exp()
        accepts.append(accept_T.tolist())
    return accepts


def drafted_ids(drafter: Drafter, rotary: Rotary, batch: Batch) -> list[Tensor]:
    """For each step the target id drafted at each of its slots [S_k]; the lower draft id wins a tie."""
    return _drafts(drafter, rotary, batch, None)[0]


def _by_slot(batch: Batch, chosen: Sequence[Tensor], length: int) -> list[list[int]]:
    """drafts[k][t] of the one row of a batch."""
    drafts = []
    for k, (step, ids_S) in enumerate(zip(batch.steps, chosen, strict=True)):
        drafts_T = torch.full((length,), NO_DRAFT)
        drafts_T[step.positions_S - k] = ids_S
        drafts.append(drafts_T.tolist())
    return drafts
