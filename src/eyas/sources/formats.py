"""One record of a known format -> messages. First forms: OpenAI, ShareGPT, Alpaca, question turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conversation import ROLES, Message

_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "tool": "tool",
    "observation": "tool",
}


class UnreadableRecord(Exception):
    """The record is of no known format, or breaks the rules of its own; the text is the reason counted."""


def messages_of(record: Any) -> list[Message]:
    """The messages of one record, whatever its format; UnreadableRecord with a short reason."""
    if isinstance(record, list):
        return _openai({"messages": record})
    if not isinstance(record, dict):
        raise UnreadableRecord("no JSON object")
    for key, read in _READERS.items():
        if key in record:
            messages = read(record)
            if not messages:
                raise UnreadableRecord("no messages")
            return messages
    raise UnreadableRecord("unknown format")


def tools_of(record: Any) -> list[dict[str, Any]] | None:
    tools = record.get("tools") if isinstance(record, dict) else None
    return tools if isinstance(tools, list) and tools else None


def _openai(record: dict[str, Any]) -> list[Message]:
    messages = record["messages"]
    if not isinstance(messages, list):
        raise UnreadableRecord("messages is no list")
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise UnreadableRecord("a message without a known role")
        if not isinstance(message.get("content"), str | None):
            raise UnreadableRecord("content that is no text")
        if message.get("content") is None and not message.get("tool_calls"):
            raise UnreadableRecord("a message without content")
    return messages


def _sharegpt(record: dict[str, Any]) -> list[Message]:
    turns = record["conversations"]
    if not isinstance(turns, list):
        raise UnreadableRecord("conversations is no list")
    messages = []
    for turn in turns:
        if not isinstance(turn, dict):
            raise UnreadableRecord("a turn that is no object")
        role = _SHAREGPT_ROLES.get(str(turn.get("from", turn.get("role"))))
        text = turn.get("value", turn.get("content"))
        if role is None or not isinstance(text, str):
            raise UnreadableRecord("a turn without a known role or text")
        messages.append({"role": role, "content": text})
    return messages


def _alpaca(record: dict[str, Any]) -> list[Message]:
    instruction, given = record["instruction"], record.get("input") or ""
    if not isinstance(instruction, str) or not isinstance(given, str) or not instruction.strip():
        raise UnreadableRecord("an instruction that is no text")
    messages = [{"role": "user", "content": f"{instruction}\n\n{given}" if given else instruction}]
    if isinstance(record.get("output"), str) and record["output"]:
        messages.append({"role": "assistant", "content": record["output"]})
    return messages


def _question(record: dict[str, Any]) -> list[Message]:
    """MT-bench form: the first turn; the second needs the answer to the first."""
    turns = record["turns"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise UnreadableRecord("turns without text")
    return [{"role": "user", "content": turns[0]}]


def _prompt(record: dict[str, Any]) -> list[Message]:
    if not isinstance(record["prompt"], str) or not record["prompt"].strip():
        raise UnreadableRecord("a prompt that is no text")
    return [{"role": "user", "content": record["prompt"]}]


_READERS: dict[str, Callable[[dict[str, Any]], list[Message]]] = {
    "messages": _openai,
    "conversations": _sharegpt,
    "instruction": _alpaca,
    "turns": _question,
    "prompt": _prompt,
}
"""By the key that gives the format away; the first that a record has decides."""
