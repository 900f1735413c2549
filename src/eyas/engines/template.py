"""The target's chat template and tokenizer: messages -> ids, as the target's own server would make them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from eyas.core.contract import read_facts
from eyas.core.errors import EyasError


class UnrenderableConversation(Exception):
    """The template refuses the conversation, or would misread it; the text is the reason counted."""


class ChatTemplate:
    """Renders and encodes with the target's own template. Special tokens come from the template alone:
    encoding never adds a second start token."""

    def __init__(self, folder: Path) -> None:
        if not read_facts(folder).has_chat_template:
            raise EyasError(
                "the target has no chat template",
                file=folder,
                expected="chat_template.jinja, or chat_template in tokenizer_config.json",
                mend="add the template that the target is served with",
            )
        self.tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self.eos_ids = frozenset(read_facts(folder).eos_ids)
        self._marks = [str(t.content) for t in self.tokenizer.added_tokens_decoder.values() if t.special]

    def render(self, messages: Sequence[dict[str, Any]], tools: Any = None, *, ask: bool) -> str:
        """The text of the messages; with `ask`, followed by the generation prompt."""
        self._refuse_marks(messages)
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=ask
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise UnrenderableConversation("the template refuses it") from error

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """(ids, the character span of each)."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return encoded["input_ids"], encoded["offset_mapping"]

    def prompt_ids(self, messages: Sequence[dict[str, Any]], tools: Any = None) -> list[int]:
        """The ids that the target continues with its answer."""
        return self.encode(self.render(messages, tools, ask=True))

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _refuse_marks(self, messages: Sequence[dict[str, Any]]) -> None:
        """Marks quoted inside a message would become control tokens, so user text could pose as a turn."""
        for message in messages:
            text = message.get("content") or ""
            if any(mark in text for mark in self._marks):
                raise UnrenderableConversation("a message quotes a special token")


@functools.lru_cache(maxsize=2)
def chat_template(folder: Path) -> ChatTemplate:
    """The target's template, loaded once a process."""
    return ChatTemplate(folder)
