"""Greedy answers of a fixed batch of prompts, by engine `hf`.

The result is a function of the batch alone: its rows, their order and the padded shape. Rows that have
ended leave the batch when a quarter of it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .cache import RoomyCache
from .hf import HfTarget

_LEAVE_SHARE = 0.75


@dataclass(frozen=True)
class Answer:
    """The ids that the target made, the end token included if it was produced.

    finish_reason: "stop" or "length".
    """

    token_ids: list[int]
    finish_reason: str


def answer_greedily(target: HfTarget, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[Answer]:
    """The target's greedy answer to each prompt of one left-padded batch."""
    longest = max(len(prompt) for prompt in prompts)
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    ids_BT = torch.zeros(len(prompts), longest, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        ids_BT[i, longest - len(prompt) :] = torch.tensor(prompt)
    mask_BT = torch.arange(longest + max_new_tokens)[None] >= pads[:, None]
    cache = RoomyCache(len(target.layers), room=longest + max_new_tokens)
    made: list[list[int]] = [[] for _ in prompts]
    finish = ["length"] * len(prompts)
    live = list(range(len(prompts)))  # index into prompts of each row of the batch
    ended: set[int] = set()
    positions_BT = (torch.arange(longest)[None] - pads[:, None]).clamp(min=0)
    with torch.inference_mode():
        for step in range(max_new_tokens):
            last_BTH = target.decoder(
                input_ids=ids_BT,
                attention_mask=mask_BT[live, : longest + step],
                position_ids=positions_BT,
                cache=cache,
                use_cache=True,
            ).last_hidden_state
            next_B = target.head(last_BTH[:, -1]).argmax(-1)
            for row, token in zip(live, next_B.tolist(), strict=True):
                if row in ended:
                    continue
                made[row].append(token)
                if token in target.facts.eos_ids:
                    ended.add(row)
                    finish[row] = "stop"
            if len(ended) == len(prompts):
                break
            keep = [i for i, row in enumerate(live) if row not in ended]
            if len(keep) <= _LEAVE_SHARE * len(live):
                cache.keep_rows(keep)
                live = [live[i] for i in keep]
                next_B = next_B[keep]
            ids_BT = next_B[:, None]
            positions_BT = (longest + step - pads[live])[:, None]
    return [Answer(ids, reason) for ids, reason in zip(made, finish, strict=True)]
