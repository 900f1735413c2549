"""The target as the decoder sees it: one stream with a cache that can be cut back.

Shapes: n tokens read, S tokens in the cache after that, A aux boundaries, G target hidden, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from eyas.drafter.network import shaped_logits
from eyas.engines.cache import RoomyCache
from eyas.engines.hf import HfTarget

_FEW = 8
"""Rows; from some twelve on a linear layer is faster."""


class TargetStream:
    """One conversation in the target's cache. Use `open_stream`."""

    def __init__(
        self, target: HfTarget, boundaries: Sequence[int], captured: dict[int, Tensor], room: int
    ) -> None:
        self.target = target
        self.boundaries = boundaries
        self.length = 0
        self._captured = captured
        self._cache = RoomyCache(len(target.layers), room)

    def read(self, ids: Sequence[int], *, last_only: bool = False) -> tuple[list[int], Tensor]:
        """Read tokens behind those in the cache, in one forward.

        Returns the greedy next token after each of them (after the last alone with last_only, which
        spares the head on a prompt) and their aux states [n, A*G].
        """
        hidden_nG, aux_nAG = self._forward(ids, torch.arange(self.length, self.length + len(ids)), None)
        return self.greedy(hidden_nG[-1:] if last_only else hidden_nG), aux_nAG

    def read_states(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The same, with the last hidden [n, G] of each token instead of its greedy next one."""
        return self._forward(ids, torch.arange(self.length, self.length + len(ids)), None)

    def read_tree(
        self, ids: Sequence[int], depths: Sequence[int], ancestry_nn: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Read the nodes of a tree, each seeing the cache and its ancestors: (last hidden [n, G], aux [n, A*G])."""
        positions = self.length + torch.tensor(depths)
        sees_nS = torch.cat([torch.ones(len(ids), self.length, dtype=torch.bool), ancestry_nn], dim=1)
        return self._forward(ids, positions, sees_nS[None, None])

    def greedy(self, hidden_nG: Tensor) -> list[int]:
        """The likeliest token after each state."""
        return self._raw_logits(hidden_nG).argmax(-1).tolist()

    def logits(self, hidden_nG: Tensor) -> Tensor:
        """[n, V], scaled and capped as the target's head does it."""
        facts = self.target.facts
        return shaped_logits(self._raw_logits(hidden_nG), facts.logit_scale, facts.soft_cap)

    def _raw_logits(self, hidden_nG: Tensor) -> Tensor:
        """[n, V]. The few rows of a round go through the head as W x^T on a CPU: x W^T, which a linear layer computes,
        takes 15, 23 and 12 ms for 2, 3 and 4 rows there, and W x^T takes 5, 6 and 5 (vocabulary 49,152, hidden 576,
        float32, one thread with AVX-512)."""
        head = self.target.head
        if (
            hidden_nG.device.type != "cpu"
            or not 1 < len(hidden_nG) <= _FEW
            or not isinstance(head, nn.Linear)
        ):
            return head(hidden_nG)
        logits_nV = (head.weight @ hidden_nG.T).T
        return logits_nV if head.bias is None else logits_nV + head.bias

    def trim(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.length = length
        self._cache.crop_to(length)

    def keep_path(self, start: int, path: Sequence[int]) -> None:
        """Of the nodes read from `start` on keep those at these places, one behind the other."""
        kept = start + torch.tensor(path)
        stop = start + len(path)
        for layer in self._cache.roomy:
            layer.key_room[..., start:stop, :] = layer.key_room[..., kept, :]
            layer.value_room[..., start:stop, :] = layer.value_room[..., kept, :]
        self.trim(stop)

    def _forward(
        self, ids: Sequence[int], positions: Tensor, sees_11nS: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        hidden_nG = self.target.decoder(
            input_ids=torch.tensor([ids]),
            attention_mask=sees_11nS,
            position_ids=positions[None],
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state[0]
        self.length += len(ids)
        return hidden_nG, torch.cat([self._captured[b][0] for b in self.boundaries], dim=-1)


@contextlib.contextmanager
def open_stream(target: HfTarget, boundaries: Sequence[int], room: int) -> Iterator[TargetStream]:
    """A new stream with room for `room` tokens (it grows if that is not enough)."""
    with torch.inference_mode(), target.captured(boundaries) as captured:
        yield TargetStream(target, boundaries, captured, room)
