"""Plain greedy decoding: `model.generate`, which the speculative outputs must equal and the times compare to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from eyas.engines.cache import RoomyCache
from eyas.engines.hf import HfTarget

from .clock import Moment, now
from .decoded import Decoded
from .decoder import GREEDY, Sampling


class _FirstToken(BaseStreamer):
    """Notes when the first token came; `generate` puts the prompt first."""

    def __init__(self) -> None:
        self.puts = 0
        self.first: Moment | None = None

    def put(self, value: Any) -> None:
        self.puts += 1
        if self.puts == 2:
            self.first = now()

    def end(self) -> None:
        """Nothing is held back that would have to be given out."""


def decode_plainly(
    target: HfTarget,
    prompt: Sequence[int],
    max_new_tokens: int,
    end_ids: Collection[int] | None = None,
    sampling: Sampling = GREEDY,
) -> Decoded:
    """Answer `prompt`, greedily unless told otherwise and without any penalty, until an end token of the target or
    the limit.

    The cache is the decoder's own kind: transformers' default copies itself at every token, and a gain
    over that would be no gain of drafting.
    """
    ends = sorted(target.facts.eos_ids if end_ids is None else end_ids)
    streamer = _FirstToken()
    begun = now()
    with torch.inference_mode():
        ids = target.model.generate(
            input_ids=torch.tensor([list(prompt)]),
            cache=RoomyCache(len(target.layers), len(prompt) + max_new_tokens),
            max_new_tokens=max_new_tokens,
            min_new_tokens=0,
            **_choice(sampling),
            num_beams=1,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            eos_token_id=ends,
            pad_token_id=ends[0] if ends else 0,
            streamer=streamer,
        )
    ended = now()
    assert streamer.first is not None
    return Decoded(ids[0, len(prompt) :].tolist(), streamer.first.since(begun), ended.since(streamer.first))


def _choice(sampling: Sampling) -> dict[str, Any]:
    """How `generate` picks a token; sampled, from the whole distribution."""
    if sampling.is_greedy:
        return {"do_sample": False}
    torch.manual_seed(sampling.seed)
    return {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
