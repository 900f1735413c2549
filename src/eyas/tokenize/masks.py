"""Masks of conversations that carry text and no ids: which tokens did the target generate?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.engines.template import ChatTemplate, UnrenderableConversation


@dataclass(frozen=True)
class Masked:
    """ids and mask of one conversation; straddling: tokens across the border of prompt and answer,
    which serving would never make and which are no labels."""

    input_ids: list[int]
    loss_mask: list[int]
    straddling: int


def mask_conversation(messages: Sequence[dict[str, Any]], tools: Any, template: ChatTemplate) -> Masked:
    """Render once, and find each answer's characters by rendering what came before it with the
    generation prompt. The end-of-turn token is a label; what the template writes after it is not.

    Raises UnrenderableConversation if the rendering of a prefix is no prefix of the whole rendering.
    """
    whole = template.render(messages, tools, ask=False)
    ids, spans = template.encode_with_spans(whole)
    mask, straddling = [0] * len(ids), 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin = len(_prefix(template.render(messages[:index], tools, ask=True), whole))
        end = len(_prefix(template.render(messages[: index + 1], tools, ask=False), whole))
        for i, (a, b) in enumerate(spans):
            if a < begin < b:
                straddling += 1
            if begin <= a and b <= end and a < b:
                mask[i] = 1
                if ids[i] in template.eos_ids:
                    break
    return Masked(ids, mask, straddling)


def _prefix(part: str, whole: str) -> str:
    if not whole.startswith(part):
        raise UnrenderableConversation("its renderings do not agree")
    return part
