"""The drafter as the decoder sees it: one stream with its own key/value cache.

Slot t holds the keys and values that step 0 makes of the true aux state a_t and the token x_{t+1}, at
rotary position t. A round drafts from the last slot: step k takes the previous step's output and draft
at position t+k, and leaves keys and values behind that slot, which the next round's true slots overwrite.

The layer's weights are those of training; its attention is written here anew, for one query at a time.

Shapes: n new slots, S slots in the cache, A aux boundaries, G target hidden, H draft hidden, Q query
heads, K key/value heads, M = Q / K, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import rotate_half

from eyas.drafter.network import Drafter
from eyas.drafter.rope import Rotary


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
        layer = self.drafter.midlayer
        slot = self.length - 1
        output_1H, drafts = self._step(*self._last, slot)
        for step in range(1, count):
            hidden_1H = self.drafter.fed_back(output_1H)
            input_12H, residual_1H = layer.enter(self.drafter.embed(torch.tensor(drafts[-1:])), hidden_1H)
            self._store(input_12H, slot + step)
            output_1H, made = self._step(input_12H, residual_1H, slot + step)
            drafts += made
        return drafts

    def _step(self, input_12H: Tensor, residual_1H: Tensor, position: int) -> tuple[Tensor, list[int]]:
        """(the layer's output, the one draft made of it) at a position whose keys are stored."""
        output_1H = self.drafter.midlayer.leave(residual_1H, self._attend(input_12H, position))
        return output_1H, self._target_ids_R[self.drafter.logits(output_1H).argmax(-1)].tolist()

    def _store(self, input_n2H: Tensor, start: int) -> None:
        """Keys and values at the positions from `start` on, in the cache rows of the same numbers."""
        stop = start + len(input_n2H)
        keys_nKD, values_nKD = self.drafter.midlayer.keys_values(input_n2H)
        self._keys_SKD[start:stop] = self._rotated(keys_nKD, start, stop)
        self._values_SKD[start:stop] = values_nKD

    def _attend(self, input_12H: Tensor, position: int) -> Tensor:
        """Mixed values [1, Q, D] of the query at `position`, which sees itself and all before it."""
        query_1QD = self._rotated(self.drafter.midlayer.queries(input_12H), position, position + 1)
        keys_KSD = self._keys_SKD[: position + 1].transpose(0, 1)
        values_KSD = self._values_SKD[: position + 1].transpose(0, 1)
        query_KMD = query_1QD[0].unflatten(0, (len(keys_KSD), -1))
        scores_KMS = query_KMD @ keys_KSD.transpose(1, 2) / query_KMD.shape[-1] ** 0.5
        return (scores_KMS.softmax(-1) @ values_KSD).flatten(0, 1)[None]

    def _rotated(self, heads_nJD: Tensor, start: int, stop: int) -> Tensor:
        cos_n1D, sin_n1D = self._cos_SD[start:stop, None], self._sin_SD[start:stop, None]
        return heads_nJD * cos_n1D + rotate_half(heads_nJD) * sin_n1D
