"""The target as the decoder sees it: one stream with a cache that can be cut back.

Shapes: n tokens read, A aux boundaries, G target hidden.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eyas.engines.cache import RoomyCache
from eyas.engines.hf import HfTarget


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
        positions = torch.arange(self.length, self.length + len(ids))
        hidden_nG = self.target.decoder(
            input_ids=torch.tensor([ids]),
            position_ids=positions[None],
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state[0]
        self.length += len(ids)
        aux_nAG = torch.cat([self._captured[b][0] for b in self.boundaries], dim=-1)
        greedy = self.target.head(hidden_nG[-1:] if last_only else hidden_nG).argmax(-1)
        return greedy.tolist(), aux_nAG

    def trim(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.length = length
        self._cache.crop_to(length)


@contextlib.contextmanager
def open_stream(target: HfTarget, boundaries: Sequence[int], room: int) -> Iterator[TargetStream]:
    """A new stream with room for `room` tokens (it grows if that is not enough)."""
    with torch.inference_mode(), target.captured(boundaries) as captured:
        yield TargetStream(target, boundaries, captured, room)
