"""Prompt sets in the forms they ship, and prompts of later turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from eyas.bench.prompt_sets import first_requests, later_requests, read_questions
from eyas.core.errors import EyasError
from eyas.core.rows import TokenRow

SHIPPED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "eval_prompts"

SETS = [
    ("mt_bench_question", 80, 2),
    ("spec_bench_question", 480, 2),
    ("eagle_humaneval_question", 80, 1),
    ("eagle_gsm8k_question", 80, 1),
    ("ifeval", 460, 1),
    ("arena-hard-v2.0_question", 595, 1),
]


class Template:
    """Stands for the target's: ids are the characters of the messages."""

    def prompt_ids(self, messages: list[dict[str, Any]], tools: Any = None) -> list[int]:
        return [ord(c) for c in "|".join(f"{m['role'][0]}:{m['content']}" for m in messages) + "|a:"]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="the shared prompt sets are not here")
@pytest.mark.parametrize(("name", "number", "turns"), SETS)
def test_the_benchmarks_are_read_in_the_forms_they_ship(name: str, number: int, turns: int) -> None:
    found = read_questions(SHIPPED / f"{name}.jsonl", None)
    assert len(found) == number
    assert max(len(question.turns) for question in found) == turns
    assert len({question.id for question in found}) == number
    assert all(question.set == name and question.turns[0].strip() for question in found)
    requests = first_requests(found, Template())  # type: ignore[arg-type]
    assert len(requests) == number


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def questions_file(folder: Path, *records: dict[str, Any]) -> Path:
    file = folder / "set.jsonl"
    file.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return file


def test_a_second_turn_holds_the_answer_to_the_first(tmp_path: Path) -> None:
    file = questions_file(
        tmp_path, {"question_id": 81, "turns": ["one", "two"], "reference": ["never", "seen"]}
    )
    found = read_questions(file, None)
    (first,) = first_requests(found, Template())  # type: ignore[arg-type]
    assert text(first.ids) == "u:one|a:"
    answers = {first.id: [ord(c) for c in "yes"]}
    (second,) = later_requests(found, answers, Template(), 1)  # type: ignore[arg-type]
    assert text(second.ids) == "u:one|a:yes|u:two|a:"
    assert second.id == "81/turn-2"
    assert later_requests(found, {}, Template(), 1) == [], "unanswered, so not asked on"  # type: ignore[arg-type]


def test_answers_in_a_conversation_file_are_no_part_of_the_prompt(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "secret"}]
    (request,) = first_requests(
        read_questions(questions_file(tmp_path, {"messages": messages}), None), Template()
    )  # type: ignore[arg-type]
    assert text(request.ids) == "u:hi|a:"


def test_token_rows_are_asked_with_their_own_prompt_ids(tmp_path: Path) -> None:
    file = tmp_path / "eval.jsonl"
    file.write_bytes(TokenRow("r", "d", [5, 6, 7, 8], [0, 0, 1, 1], []).line())
    (request,) = first_requests(read_questions(file, None), Template())  # type: ignore[arg-type]
    assert request.ids == [5, 6]


def test_the_limit_takes_the_first_questions(tmp_path: Path) -> None:
    file = questions_file(tmp_path, *({"prompt": f"p{i}"} for i in range(5)))
    assert [q.turns[0] for q in read_questions(file, 2)] == ["p0", "p1"]


def test_a_missing_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match="does not exist"):
        read_questions(tmp_path / "none.jsonl", None)
