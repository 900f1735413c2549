"""Prompt sets: the benchmarks' own files, any conversation file, or token rows that Eyas made.

MT-bench and Spec-Bench questions have several turns; a later turn's prompt holds the answer to the one before, so it
is made when that is known. Nothing of an answer that stands in a file becomes part of a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eyas.core.errors import EyasError
from eyas.core.files import read_lines
from eyas.core.rows import read_rows, turns
from eyas.engines.template import ChatTemplate, UnrenderableConversation
from eyas.sources.dataset import read_dataset

_GIVEN_IDS = b'"input_ids"'


@dataclass(frozen=True)
class Question:
    """turns: the user's texts; a later one is asked when those before it are answered. messages: what stands before
    the first turn (a system message, earlier turns of a conversation). ids: the prompt itself where it is given as
    ids, else None."""

    set: str
    id: str
    turns: list[str]
    messages: list[dict[str, Any]]
    tools: Any = None
    ids: list[int] | None = None


@dataclass(frozen=True)
class Request:
    """One prompt as ids."""

    set: str
    id: str
    ids: list[int]


def read_questions(path: Path, limit: int | None) -> list[Question]:
    """The first `limit` questions of a file; the set's name is the file's. EyasError if there is none."""
    if not path.is_file():
        raise EyasError("the prompt set does not exist", file=path, mend="give a file of prompts")
    name = path.stem
    if _holds_ids(path):
        found = [_from_row(name, row.id, row.input_ids, row.loss_mask) for row in read_rows(path)]
    else:
        later = _later_turns(path)
        found = []
        for conversation in read_dataset(path, name).conversations:
            before, last = conversation.prompt[:-1], conversation.prompt[-1]
            texts = [last.get("content") or "", *later.get(conversation.id, [])]
            found.append(Question(name, conversation.id, texts, before, conversation.tools))
    if not found:
        raise EyasError("the prompt set is empty", file=path, mend="give a file with prompts")
    return found[:limit]


def first_requests(questions: Sequence[Question], template: ChatTemplate) -> list[Request]:
    """The first prompt of each question; those that the target's template refuses are left out."""
    made = []
    for question in questions:
        ids = question.ids
        if ids is None:
            ids = _render(template, [*question.messages, _user(question.turns[0])], question.tools)
        if ids is not None:
            made.append(Request(question.set, question.id, ids))
    return made


def later_requests(
    questions: Sequence[Question], answers: Mapping[str, list[int]], template: ChatTemplate, turn: int
) -> list[Request]:
    """The prompts of turn number `turn` (1 is the second). answers: token ids by the request's id."""
    made = []
    for question in questions:
        asked = [turn_id(question.id, n) for n in range(turn)]
        if turn >= len(question.turns) or any(name not in answers for name in asked):
            continue
        messages = [*question.messages]
        for number, text in enumerate(question.turns[: turn + 1]):
            messages.append(_user(text))
            if number < turn:
                reply = template.decode(answers[asked[number]])
                messages.append({"role": "assistant", "content": reply})
        ids = _render(template, messages, question.tools)
        if ids is not None:
            made.append(Request(question.set, turn_id(question.id, turn), ids))
    return made


def turn_id(question: str, turn: int) -> str:
    """Name of a question's request: the question's own for the first turn."""
    return question if turn == 0 else f"{question}/turn-{turn + 1}"


def _from_row(name: str, row_id: str, ids: list[int], mask: list[int]) -> Question:
    found = turns(mask)
    return Question(name, row_id, [], [], ids=ids[: found[0][0]] if found else ids)


def _render(template: ChatTemplate, messages: list[dict[str, Any]], tools: Any) -> list[int] | None:
    try:
        return template.prompt_ids(messages, tools)
    except UnrenderableConversation:
        return None


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _holds_ids(path: Path) -> bool:
    with open(path, "rb") as file:
        return _GIVEN_IDS in file.read(4096)


def _later_turns(path: Path) -> dict[str, list[str]]:
    """The turns after the first by question id, of a file in MT-bench's form; {} for every other file."""
    found: dict[str, list[str]] = {}
    for _, line in read_lines(path):
        if not line.startswith(b"{"):
            return {}
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return {}  # one JSON document over many lines: no questions file
        given = record.get("turns")
        if not isinstance(given, list) or "question_id" not in record:
            return {}
        if len(given) > 1:
            found[str(record["question_id"])] = [str(text) for text in given[1:]]
    return found
