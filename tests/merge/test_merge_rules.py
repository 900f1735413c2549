from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.core.rows import TokenRow, turns
from eyas.merge.reasons import MEANING
from eyas.merge.rules import Drop, Judged, Rules, cut_length, judge
from token_sets import entry, merge, read, write

CASES = Path(__file__).resolve().parents[1] / "cases" / "inputs"
RULES = Rules(max_seq_len=8, cut="token", min_trainable=1, vocab_size=None)
GOOD = {"input_ids": [1, 2], "loss_mask": [0, 1]}

masks = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def reason(line: bytes, rules: Rules = RULES) -> str | None:
    judged = judge(line, rules)
    return judged.reason if isinstance(judged, Drop) else None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"input_ids": [1, 2], "loss_m', "not_json"),
        (b'{"input_ids": [1], "loss_mask": [1], "x": "\xff"}', "not_utf8"),
        (b'{"input_ids": [1], "loss_mask": [1], "x": NaN}', "nan"),
        (b'{"input_ids": [1], "loss_mask": [1], "x": -Infinity}', "nan"),
        (b'{"input_ids": [01], "loss_mask": [1]}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[1, 2]", "not_object"),
        (b'{"input_ids": [1], "loss_mask": [1], "input_ids": [2]}', "duplicate_key"),
        (b'{"input_ids": [1], "loss_mask": [1], "x": {"a": 1, "\\u0061": 2}}', "duplicate_key"),
        (b'{"loss_mask": [1]}', "missing_input_ids"),
        (b'{"input_ids": [1]}', "missing_loss_mask"),
        (b'{"input_ids": null, "loss_mask": [1]}', "not_a_list"),
        (b'{"input_ids": [], "loss_mask": []}', "empty"),
        (b'{"input_ids": [1, 2], "loss_mask": [1]}', "unequal_lengths"),
        (b'{"input_ids": ["1"], "loss_mask": [1]}', "not_an_integer"),
        (b'{"input_ids": [1.0], "loss_mask": [1]}', "not_an_integer"),
        (b'{"input_ids": [true], "loss_mask": [1]}', "not_an_integer"),
        (b'{"input_ids": [-1], "loss_mask": [1]}', "negative_id"),
        (b'{"input_ids": [2147483648], "loss_mask": [1]}', "id_too_large"),
        (b'{"input_ids": [98765432109876543210987], "loss_mask": [1]}', "id_too_large"),
        (b'{"input_ids": [%s], "loss_mask": [1]}' % (b"9" * 5000), "not_json"),
        (b'{"input_ids": [1], "loss_mask": [2]}', "mask_not_0_or_1"),
        (b'{"input_ids": [1], "loss_mask": [true]}', "mask_not_0_or_1"),
        (b'{"input_ids": [1], "loss_mask": [1], "id": [1]}', "bad_row_id"),
        (b'{"input_ids": [1], "loss_mask": [1], "id": true}', "bad_row_id"),
        (b'{"input_ids": [1], "loss_mask": [1], "flags": "cut"}', "bad_flags"),
        (b'{"input_ids": [1], "loss_mask": [0]}', "too_few_labels"),
        (b'{"input_ids": [2147483647], "loss_mask": [1]}', None),
        (b'\t{"loss_mask" :[1 ],\t"input_ids":[ 0 ] } \r', None),
        (b'{"input_ids": [1], "loss_mask": [1], "x": "a: b", "y": {"a": {"a": 1}}}', None),
    ],
)
def test_each_fault_has_its_own_reason(line: bytes, expected: str | None) -> None:
    assert reason(line) == expected
    assert expected is None or expected in MEANING


def test_an_id_outside_the_vocabulary_has_its_own_reason() -> None:
    small = Rules(8, "token", 1, vocab_size=100)
    assert reason(b'{"input_ids": [100], "loss_mask": [1]}', small) == "outside_vocabulary"
    assert reason(b'{"input_ids": [99], "loss_mask": [1]}', small) is None


@given(masks, st.integers(1, 40), st.integers(0, 3), st.sampled_from(["token", "turn"]))
def test_ids_and_mask_are_cut_together_and_nothing_is_invented(
    mask: list[int], limit: int, min_trainable: int, cut: Any
) -> None:
    rules = Rules(limit, cut, min_trainable, None)
    ids = [1000 + i for i in range(len(mask))]
    judged = judge(json.dumps({"input_ids": ids, "loss_mask": mask}).encode(), rules)
    kept = cut_length(mask, rules)
    if kept == 0 or sum(mask[:kept]) < min_trainable:
        assert isinstance(judged, Drop)
        assert judged.reason == "too_few_labels"
        return
    assert isinstance(judged, Judged)
    assert json.loads(b"[%b]" % judged.ids) == ids[:kept], "the ids must be a prefix of the source's"
    assert json.loads(b"[%b]" % judged.mask) == mask[:kept], "the mask must be cut where the ids are"
    assert (judged.tokens, judged.tokens_in, judged.labels) == (kept, len(ids), sum(mask[:kept]))
    assert ("cut" in json.loads(judged.flags)) == (kept < len(ids))


@given(masks, st.integers(1, 40))
def test_a_cut_by_turns_ends_with_the_last_whole_turn_that_fits(mask: list[int], limit: int) -> None:
    kept = cut_length(mask, Rules(limit, "turn", 1, None))
    if len(mask) <= limit:
        assert kept == len(mask)
        return
    whole = [q + 1 for _, q in turns(mask) if q < limit]
    assert kept == (whole[-1] if whole else 0)


def test_a_row_is_written_in_the_form_of_a_token_row_with_further_keys_behind() -> None:
    fields = {"more": {"a": 1}, "input_ids": [5, 6], "loss_mask": [0, 1], "flags": ["greedy"], "id": "x"}
    judged = judge(json.dumps(fields).encode(), RULES)
    assert isinstance(judged, Judged)
    line = b"".join(judged.line(b'"x"', b'"d"'))
    plain = TokenRow("x", "d", [5, 6], [0, 1], ["greedy"]).line()
    assert line == plain[:-2] + b',"more":{"a":1}}\n'
    assert len(line) == judged.size + len(b'"x"') + len(b'"d"'), (
        "sizes are predicted before anything is written"
    )


def test_further_keys_are_carried_exactly() -> None:
    more = b'"n":123456789012345678901234,"x":0.1,"t":"\xc3\xbc\\n","o":{"a":[null,true]}'
    judged = judge(b'{"input_ids":[5],"loss_mask":[1],%s}' % more, RULES)
    assert isinstance(judged, Judged)
    assert judged.extra == b"," + more


def test_case_c022_rows_without_labels_after_the_cut_are_dropped_and_counted(tmp_path: Path) -> None:
    expected = json.loads((CASES / "C022.expected.json").read_bytes())
    file = tmp_path / "set" / "tokenized_data.jsonl"
    write(file, (CASES / "C022.tokenized.jsonl").read_bytes().splitlines())
    manifest = merge(tmp_path / "out", tmp_path / "set", max_seq_len=expected["max_length"])
    rows = {row["id"]: row for row in read(tmp_path / "out" / "train.jsonl")}
    assert rows.keys() == expected["kept"].keys()
    for name, right in expected["kept"].items():
        assert rows[name]["input_ids"] == right["input_ids"]
        assert rows[name]["loss_mask"] == right["loss_mask"]
        assert ("cut" in rows[name]["flags"]) == right["cut"]
    assert entry(manifest, "set")["dropped"] == {"too_few_labels": 1}
