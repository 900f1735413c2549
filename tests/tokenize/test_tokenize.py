from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tinytarget as tiny
from eyas.core.errors import EyasError
from eyas.engines.template import ChatTemplate, UnrenderableConversation
from eyas.tokenize.masks import mask_conversation
from eyas.tokenize.stage import tokenize_rows


@pytest.fixture(scope="module")
def template(tiny_target: Path) -> ChatTemplate:
    return ChatTemplate(tiny_target)


def labels(messages: list[dict[str, Any]], template: ChatTemplate) -> str:
    masked = mask_conversation(messages, None, template)
    return template.tokenizer.decode(
        [i for i, m in zip(masked.input_ids, masked.loss_mask, strict=True) if m]
    )


def turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def answer(**changes: Any) -> dict[str, Any]:
    fields = {
        "id": "a", "dataset": "d", "messages": [turn("user", "hi")], "tools": None, "prompt_token_ids": [1, 2, 3],
        "token_ids": [4, 5], "finish_reason": "stop", "greedy": True,
    }  # fmt: skip
    return {**fields, **changes}


def test_engine_ids_are_joined_and_never_encoded_again(tiny_target: Path) -> None:
    row = tokenize_rows([answer()], tiny_target).rows[0]
    assert (row.input_ids, row.loss_mask) == ([1, 2, 3, 4, 5], [0, 0, 0, 1, 1])
    assert row.is_own_greedy_text


def test_a_cut_answer_is_marked_and_gets_no_end_token(tiny_target: Path) -> None:
    row = tokenize_rows([answer(finish_reason="length")], tiny_target).rows[0]
    assert "cut" in row.flags
    assert row.input_ids[-1] == 5, (
        "an end token was invented: the drafter would learn endings that never were"
    )


def test_answers_and_their_end_tokens_are_labels_and_nothing_else_is(template: ChatTemplate) -> None:
    messages = [
        turn("user", "one"),
        turn("assistant", "two"),
        turn("user", "three"),
        turn("assistant", "four"),
    ]
    assert labels(messages, template) == "two<|im_end|>four<|im_end|>"


def test_a_system_message_is_no_label(template: ChatTemplate) -> None:
    messages = [turn("system", "be kind"), turn("user", "one"), turn("assistant", "two")]
    assert labels(messages, template) == "two<|im_end|>"


def test_a_conversation_without_an_answer_is_dropped_and_counted(tiny_target: Path) -> None:
    made = tokenize_rows([answer(token_ids=None, greedy=False, finish_reason=None)], tiny_target)
    assert not made.rows
    assert made.drops == {"no label": 1}, "training on a row without labels looks healthy and teaches nothing"


def test_a_template_whose_renderings_disagree_is_refused_aloud(tmp_path: Path) -> None:
    changing = "{{ messages|length }}" + tiny.TEMPLATE
    tiny.write_target(tmp_path, layers=2, template=changing)
    with pytest.raises(UnrenderableConversation, match="do not agree"):
        labels([turn("user", "one"), turn("assistant", "two")], ChatTemplate(tmp_path))


def test_text_rows_are_not_called_the_targets_own(tiny_target: Path) -> None:
    given = answer(token_ids=None, greedy=False, messages=[turn("user", "a"), turn("assistant", "b")])
    row = tokenize_rows([given], tiny_target).rows[0]
    assert not row.is_own_greedy_text, "an accept length on foreign text must not be sold as a serving figure"


def test_a_stage_that_loses_most_rows_fails(tmp_path: Path, tiny_target: Path) -> None:
    from eyas.core.artefact import Out
    from eyas.core.contract import target_source
    from eyas.core.manifest import artefact_source, file_source
    from eyas.generate.options import DatasetChoice, GenerateOptions
    from eyas.generate.stage import run as generate
    from eyas.tokenize.options import TokenizeOptions
    from eyas.tokenize.stage import run as tokenize

    good = {"messages": [turn("user", "a"), turn("assistant", "b")]}
    empty = {"messages": [turn("user", "a"), turn("assistant", "<|im_end|>")]}
    file = tiny.write_jsonl(tmp_path / "f.jsonl", [good, empty, empty])
    options = GenerateOptions(datasets=(DatasetChoice(name="d", answers="given"),), workers=1)
    inputs = {"target": target_source(tiny_target), "dataset:d": file_source(file)}
    generate(options, inputs, Out(tmp_path / "g"))
    source = {"generate": artefact_source(tmp_path / "g", "generate"), "target": target_source(tiny_target)}
    with pytest.raises(EyasError, match="1 of 3 rows were kept"):
        tokenize(TokenizeOptions(), source, Out(tmp_path / "t"))
