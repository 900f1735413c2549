"""Attention of the unrolled draft steps: step-0 keys s <= t of the same conversation, then own-slot keys.

At step k the query of slot t sees the step-0 keys of slots 0 .. t of its conversation and, of steps
1 .. k, only the key of its own slot; one softmax goes over all of them. Source: the training-time test
of EAGLE-3 (SafeAILab/EAGLE, traineagle3/cnets.py). No T x (T * steps) mask or score matrix is built.

Shapes: S query slots, N step-0 slots, J steps 1..k, Q query heads, K key/value heads, D head
dimension, G = Q / K query heads of a group, m queries and n keys of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Consecutive slots of one turn: queries [start, stop) see keys from `first_key` on, each up to its own.

    own_key is the place of query `start` among the step-0 keys; the next query's own key is the next.
    """

    start: int
    stop: int
    first_key: int
    own_key: int

    @property
    def last_key(self) -> int:
        """One past the last key that any query of the run sees."""
        return self.own_key + self.stop - self.start


def attend(
    queries_SQD: Tensor,
    keys_NKD: Tensor,
    values_NKD: Tensor,
    own: Sequence[tuple[Tensor, Tensor]],
    runs: Sequence[Run],
) -> Tensor:
    """The mixed values [S, Q, D].

    queries and keys are rotated. own: (keys, values), each [S, K, D], of steps 1..k at the queries' own
    slots. Every query belongs to exactly one run, and the runs are in the order of the queries.
    """
    parts = [
        _attend_run(
            queries_SQD[run.start : run.stop],
            keys_NKD[run.first_key : run.last_key],
            values_NKD[run.first_key : run.last_key],
            [(keys[run.start : run.stop], values[run.start : run.stop]) for keys, values in own],
        )
        for run in runs
    ]
    return torch.cat(parts) if len(parts) != 1 else parts[0]


def _attend_run(q_mQD: Tensor, k_nKD: Tensor, v_nKD: Tensor, own: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The plain form: all scores of one run at once, [K, G, m, n + J]."""
    m, heads, width = q_mQD.shape
    n, groups, _ = k_nKD.shape
    q_mKGD = q_mQD.unflatten(1, (groups, heads // groups)) * width**-0.5
    q_KGmD = q_mKGD.permute(1, 2, 0, 3)
    scores = q_KGmD @ k_nKD.permute(1, 2, 0).unsqueeze(1)
    ahead_mn = torch.ones(m, n, dtype=torch.bool).triu(n - m + 1)
    scores = scores.masked_fill(ahead_mn, -torch.inf)
    if not own:
        weights = scores.softmax(-1)
        return (weights @ v_nKD.transpose(0, 1).unsqueeze(1)).permute(2, 0, 1, 3).reshape(m, heads, width)
    own_k_JmKD = torch.stack([keys for keys, _ in own])
    own_v_JmKD = torch.stack([values for _, values in own])
    own_scores = torch.einsum("mkgd,jmkd->kgmj", q_mKGD, own_k_JmKD)
    weights = torch.cat([scores, own_scores], dim=-1).softmax(-1)
    causal, diagonal = weights.split((n, len(own)), dim=-1)
    mixed_KGmD = causal @ v_nKD.transpose(0, 1).unsqueeze(1)
    mixed_mKGD = mixed_KGmD.permute(2, 0, 1, 3) + torch.einsum("kgmj,jmkd->mkgd", diagonal, own_v_JmKD)
    return mixed_mKGD.reshape(m, heads, width)
