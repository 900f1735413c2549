from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from eyas.core.errors import EyasError
from eyas.sources.dataset import read_dataset
from eyas.sources.formats import UnreadableRecord, messages_of

USER = {"role": "user", "content": "hi"}
SHARED = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [USER]},
        [USER],
        {"conversations": [{"from": "human", "value": "hi"}]},
        {"conversations": [{"role": "user", "content": "hi"}]},
        {"instruction": "hi", "input": ""},
        {"turns": ["hi", "and then?"]},
        {"prompt": "hi"},
    ],
)
def test_every_known_format_becomes_the_same_conversation(record: object) -> None:
    assert messages_of(record) == [USER]


def test_an_alpaca_input_follows_its_instruction() -> None:
    assert messages_of({"instruction": "do", "input": "this", "output": "done"}) == [
        {"role": "user", "content": "do\n\nthis"},
        {"role": "assistant", "content": "done"},
    ]


@pytest.mark.parametrize("record", [7, {}, {"messages": []}, {"messages": [{"role": "judge", "content": "x"}]},
                                    {"conversations": [{"from": "human"}]}, {"instruction": " "}])  # fmt: skip
def test_what_cannot_be_read_has_a_reason(record: object) -> None:
    with pytest.raises(UnreadableRecord):
        messages_of(record)


def test_unreadable_records_are_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(orjson.dumps({"prompt": "a"}) + b"\n" + orjson.dumps({"x": 1}) + b"\n")
    read = read_dataset(tmp_path / "f.jsonl", "d")
    assert read.counts.plain() == {"rows_in": 2, "rows_out": 1, "dropped": {"unreadable: unknown format": 1}}


def test_json_lines_under_the_suffix_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(b'{"prompt":"a"}\n{"prompt":"b"}\n')
    assert len(read_dataset(tmp_path / "f.json", "d").conversations) == 2


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(b'{"prompt":"a"}\n{"prompt":\n')
    with pytest.raises(EyasError) as error:
        read_dataset(tmp_path / "f.jsonl", "d")
    assert error.value.record == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside this checkout")
@pytest.mark.parametrize(
    ("file", "records"),
    [
        ("eval_prompts/mt_bench_question.jsonl", 80),
        ("instruct/alpaca_en_demo.json", 850),
        ("chat/fastchat_dummy_conversation.json", 425),
        ("chat/xtuner_openai_sft.jsonl", 107),
        ("chat/sharegpt_gpt4_256.jsonl", 215),
    ],
)
def test_real_files_lose_no_record(file: str, records: int) -> None:
    counts = read_dataset(SHARED / file, "real").counts
    assert counts.rows_in == records, "records were cut or joined while reading"
    assert counts.rows_out >= 0.9 * records
