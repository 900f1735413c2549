"""The drafter as the decoder sees it: one stream with its own key/value cache.

Slot t holds the keys and values that step 0 makes of the true aux state a_t and the token x_{t+1}, at
rotary position t. A round drafts from the last slot: step k takes the previous step's output and draft
at position t+k, and leaves keys and values behind that slot, which the next round's true slots overwrite.

The layer's weights are those of training; its attention is written here anew, for few queries at a time.

Shapes: n new slots, w nodes of a tree's step, S slots in the cache, A aux boundaries, G target hidden, H draft
hidden, Q query heads, K key/value heads, M = Q / K, D head dimension, R draft and V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eyas.drafter.network import Drafter
from eyas.drafter.rope import Rotary, rotate

from .sampling import distribution, draw
from .tree import DraftTree, TreeBuilder, TreeShape


class DraftStream:
    """One conversation in the drafter's cache, with room for `room` slots and drafts."""

    def __init__(self, drafter: Drafter, room: int) -> None:
        config = drafter.config
        self.drafter = drafter
        self.length = 0
        self._dtype = drafter.fc.weight.dtype
        self._keys_SKD = torch.empty(room, config.num_kv_heads, config.head_dim, dtype=self._dtype)
        self._values_SKD = torch.empty_like(self._keys_SKD)
        self._cos_SD, self._sin_SD = Rotary(config).table(room, self._dtype)
        self._target_ids_R = drafter.target_ids_R

    def learn(self, aux_nAG: Tensor, next_ids: Sequence[int]) -> None:
        """Add true slots: their aux states and the tokens after them. Drafts in the cache are overwritten."""
        layer = self.drafter.midlayer
        hidden_nH = self.drafter.fuse(aux_nAG.to(self._dtype))
        input_n2H, residual_nH = layer.enter(self.drafter.embed(torch.tensor(next_ids)), hidden_nH)
        self._store(input_n2H, self.length)
        self.length += len(next_ids)
        self._last = input_n2H[-1:], residual_nH[-1:]

    def propose(self, count: int) -> list[int]:
        """`count` greedy drafts, as target ids, of the tokens after the newest slot's next token."""
        drafts: list[int] = []
        for logits_1R in self._chain(count, drafts):
            drafts += self._target_ids_R[logits_1R.argmax(-1)].tolist()
        return drafts

    def propose_sampled(
        self, count: int, temperature: float, generator: torch.Generator
    ) -> tuple[list[int], Tensor]:
        """(`count` drafts drawn from the drafter, the distributions [count, V] that they were drawn from)."""
        drafts: list[int] = []
        drawn_from = torch.zeros(count, self.drafter.config.vocab_size, dtype=torch.float64)
        for logits_1R in self._chain(count, drafts):
            drawn_from[len(drafts), self._target_ids_R] = distribution(logits_1R[0], temperature)
            drafts.append(draw(drawn_from[len(drafts)], generator))
        return drafts, drawn_from

    def propose_tree(self, root: int, shape: TreeShape) -> DraftTree:
        """A tree of drafts after the newest slot's next token, which is its root."""
        layer = self.drafter.midlayer
        builder, width = TreeBuilder(root, shape), min(shape.width, len(self._target_ids_R))
        input_w2H, residual_wH = self._last
        sees_wn = torch.zeros(1, 0, dtype=torch.bool)  # stored nodes that each node of the step sees
        for depth in range(shape.depth):
            position = self.length - 1 + depth
            if depth:
                self._store_nodes(input_w2H, sees_wn.shape[1] - len(input_w2H), position)
            output_wH = layer.leave(residual_wH, self._attend(input_w2H, position, sees_wn))
            best = self.drafter.logits(output_wH).log_softmax(-1).topk(width)
            expanded = builder.frontier
            builder.grow(self._target_ids_R[best.indices], best.values)
            rows = [expanded.index(builder.parent(node)) for node in builder.frontier]
            tokens = torch.tensor([builder.token(node) for node in builder.frontier])
            hidden_wH = self.drafter.fed_back(output_wH)[rows]
            input_w2H, residual_wH = layer.enter(self.drafter.embed(tokens), hidden_wH)
            sees_wn = torch.cat([sees_wn[rows], torch.eye(len(rows), dtype=torch.bool)], dim=1)
        return builder.finish()

    def _chain(self, count: int, drafts: list[int]) -> Iterator[Tensor]:
        """The logits [1, R] of each step; the caller puts the step's draft into `drafts` before the next."""
        layer = self.drafter.midlayer
        slot = self.length - 1
        input_12H, residual_1H = self._last
        for step in range(count):
            output_1H = layer.leave(residual_1H, self._attend(input_12H, slot + step))
            yield self.drafter.logits(output_1H)
            if step + 1 < count:
                hidden_1H = self.drafter.fed_back(output_1H)
                input_12H, residual_1H = layer.enter(self.drafter.embed(torch.tensor(drafts[-1:])), hidden_1H)
                self._store(input_12H, slot + step + 1)

    def _store(self, input_n2H: Tensor, start: int) -> None:
        """Keys and values at the positions from `start` on, in the cache rows of the same numbers."""
        stop = start + len(input_n2H)
        keys_nKD, values_nKD = self.drafter.midlayer.keys_values(input_n2H)
        self._keys_SKD[start:stop] = self._rotated(keys_nKD, start, stop)
        self._values_SKD[start:stop] = values_nKD

    def _store_nodes(self, input_w2H: Tensor, before: int, position: int) -> None:
        """Keys and values of nodes at one position, behind the true slots and `before` nodes of the tree."""
        start = self.length + before
        stop = start + len(input_w2H)
        keys_wKD, values_wKD = self.drafter.midlayer.keys_values(input_w2H)
        self._keys_SKD[start:stop] = self._rotated(keys_wKD, position, position + 1)
        self._values_SKD[start:stop] = values_wKD

    def _attend(self, input_w2H: Tensor, position: int, sees_wn: Tensor | None = None) -> Tensor:
        """Mixed values [w, Q, D] of the queries at `position`. They see every row up to it, or with `sees_wn` the
        true slots and of the nodes behind those the marked ones."""
        rows = position + 1 if sees_wn is None else self.length + sees_wn.shape[1]
        query_wQD = self._rotated(self.drafter.midlayer.queries(input_w2H), position, position + 1)
        keys_KSD = self._keys_SKD[:rows].transpose(0, 1)
        values_KSD = self._values_SKD[:rows].transpose(0, 1)
        query_KwMD = query_wQD.unflatten(1, (len(keys_KSD), -1)).transpose(0, 1)
        scores_KwMS = query_KwMD @ keys_KSD.transpose(1, 2)[:, None] / query_wQD.shape[-1] ** 0.5
        if sees_wn is not None and sees_wn.shape[1]:
            unseen_w1n = ~sees_wn[:, None]
            scores_KwMS[..., self.length :].masked_fill_(unseen_w1n, -torch.inf)
        return (scores_KwMS.softmax(-1) @ values_KSD[:, None]).transpose(0, 1).flatten(1, 2)

    def _rotated(self, heads_nJD: Tensor, start: int, stop: int) -> Tensor:
        return rotate(heads_nJD, self._cos_SD[start:stop], self._sin_SD[start:stop])
