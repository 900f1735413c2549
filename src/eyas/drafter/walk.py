"""The walk: the accept length of a greedy chain, without decoding.

On rows that are the target's own greedy text, step k at slot t is the very state that a server has when
it drafts there, so a walk over the unrolled steps gives its rounds one by one. Source: docs/design.md
section 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eyas.core.rows import turns
from eyas.states.store import StateRow, StateStore

from .accuracy import Accuracy
from .batch import Batch, make_batch
from .network import Drafter
from .rope import Rotary
from .unroll import unroll

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


@dataclass(frozen=True)
class RowWalk:
    """The rounds of one row; own_greedy: the row is such that decoding gives the same rounds."""

    dataset: str
    id: str
    own_greedy: bool
    rounds: list[int]


@dataclass
class Walk:
    """Walks of many rows, with the accuracy of each step by dataset.

    ceilings: the walks of a drafter that is right wherever the draft vocabulary lets it be.
    """

    drafts: int
    limit: int | None
    rows: list[RowWalk] = field(default_factory=list)
    ceilings: list[RowWalk] = field(default_factory=list)
    accuracies: dict[str, Accuracy] = field(default_factory=dict)
    outside: dict[str, list[int]] = field(default_factory=dict)

    @property
    def accept_length(self) -> float | None:
        """Tokens / rounds over all rows together."""
        return pooled(self.rows)

    @property
    def by_dataset(self) -> dict[str, float | None]:
        return {name: pooled(rows) for name, rows in _grouped(self.rows).items()}

    @property
    def accuracy(self) -> Accuracy:
        """Of all rows together."""
        together = Accuracy(self.drafts)
        for accuracy in self.accuracies.values():
            together.merge(accuracy)
        return together

    def plain(self) -> dict[str, Any]:
        """The form of walk.json."""
        return {
            "drafts": self.drafts,
            "limit": self.limit,
            "serving_claim": all(row.own_greedy for row in self.rows),
            "accept_length": self.accept_length,
            "accept_length_mean_of_rows": mean_of_rows(self.rows),
            "accept_length_by_dataset": self.by_dataset,
            "ceiling": pooled(self.ceilings),
            "ceiling_by_dataset": {name: pooled(rows) for name, rows in _grouped(self.ceilings).items()},
            "accuracy_by_dataset": {name: self.accuracies[name].plain() for name in sorted(self.accuracies)},
            "labels_outside_vocabulary": {name: self.outside[name] for name in sorted(self.outside)},
            "rows": [
                {"dataset": r.dataset, "id": r.id, "own_greedy": r.own_greedy, "rounds": r.rounds}
                for r in self.rows
            ],
        }


def pooled(rows: Sequence[RowWalk]) -> float | None:
    """Tokens per round over all rows together; None where there is no round."""
    rounds = [emitted for row in rows for emitted in row.rounds]
    return sum(rounds) / len(rounds) if rounds else None


def mean_of_rows(rows: Sequence[RowWalk]) -> float | None:
    """The mean of each row's own tokens per round."""
    means = [sum(row.rounds) / len(row.rounds) for row in rows if row.rounds]
    return sum(means) / len(means) if means else None


def walk_store(
    drafter: Drafter, store: StateStore | Sequence[StateRow], drafts: int, limit: int | None = None
) -> Walk:
    """Walk every row of a split; `drafts` steps are unrolled whatever the drafter was trained for."""
    rotary = Rotary(drafter.config)
    walk = Walk(drafts, limit)
    for index in range(len(store)):
        _walk_row(drafter, rotary, store[index], walk)
    return walk


@torch.inference_mode()
def _walk_row(drafter: Drafter, rotary: Rotary, row: StateRow, walk: Walk) -> None:
    batch = make_batch([row], drafter.t2d, walk.drafts)
    drafted = drafted_ids(drafter, rotary, batch)
    known = [drafter.t2d[step.labels_S] for step in batch.steps]
    best = [
        torch.where(inside, step.labels_S, NO_DRAFT) for step, inside in zip(batch.steps, known, strict=True)
    ]
    ids, mask = row.input_ids_T.tolist(), row.loss_mask_T.tolist()
    for rows, chosen in ((walk.rows, drafted), (walk.ceilings, best)):
        rounds = walk_rounds(ids, mask, _by_slot(batch, chosen, len(row)), walk.limit)
        rows.append(RowWalk(row.dataset, row.id, row.is_own_greedy_text, rounds))
    hits = [ids_S == step.labels_S for step, ids_S in zip(batch.steps, drafted, strict=True)]
    accuracy = walk.accuracies.setdefault(row.dataset, Accuracy(walk.drafts))
    accuracy.add(hits, [step.keep_S for step in batch.steps])
    outside = walk.outside.setdefault(row.dataset, [0] * walk.drafts)
    for k, inside_S in enumerate(known):
        outside[k] += int((~inside_S).sum())


def drafted_ids(drafter: Drafter, rotary: Rotary, batch: Batch) -> list[Tensor]:
    """For each step the target id drafted at each of its slots [S_k]; the lower draft id wins a tie."""
    outputs = unroll(drafter, rotary, batch)
    drafted = [drafter.target_ids_R[drafter.logits(output_SH).argmax(-1)] for output_SH in outputs]
    empty = torch.empty(0, dtype=torch.int64)
    return drafted + [empty] * (len(batch.steps) - len(drafted))


def _by_slot(batch: Batch, chosen: Sequence[Tensor], length: int) -> list[list[int]]:
    """drafts[k][t] of the one row of a batch."""
    drafts = []
    for k, (step, ids_S) in enumerate(zip(batch.steps, chosen, strict=True)):
        drafts_T = torch.full((length,), NO_DRAFT)
        drafts_T[step.positions_S - k] = ids_S
        drafts.append(drafts_T.tolist())
    return drafts


def _grouped(rows: Sequence[RowWalk]) -> dict[str, list[RowWalk]]:
    groups: dict[str, list[RowWalk]] = defaultdict(list)
    for row in rows:
        groups[row.dataset].append(row)
    return dict(sorted(groups.items()))
