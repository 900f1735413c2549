"""A conversation: what every input format becomes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """Messages of the OpenAI form (role, content, reasoning_content, tool_calls, tool_call_id), and tools."""

    id: str
    dataset: str
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None

    @property
    def prompt(self) -> list[Message]:
        """The messages that the target is to answer: everything up to the last that is not an assistant's."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] == "assistant":
            end -= 1
        return self.messages[:end]
