"""Speed never decides what is accepted: what the fast path accepts, the slow path gives in the same form."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas.merge.fast import Block, Heads, take
from eyas.merge.rules import Judged, Rules, judge

LONG = bool(os.environ.get("EYAS_LONG"))
MUTATIONS = 8
EXAMPLES = 100_000 // MUTATIONS if LONG else 600

RULES = [
    Rules(max_seq_len=6, cut="token", min_trainable=1, vocab_size=None),
    Rules(max_seq_len=6, cut="turn", min_trainable=2, vocab_size=163_840),
    Rules(max_seq_len=3, cut="turn", min_trainable=0, vocab_size=100),
    Rules(max_seq_len=100, cut="token", min_trainable=1, vocab_size=10**7),
]
BLOCKS = {rules: Block(1 << 14, rules) for rules in RULES}
PIECES = [
    b"0", b"1", b"12", b"00", b"01", b"163839", b"163840", b"1234567", b"2147483648", b"-1", b"1.0", b"1e3", b"true",
    b"null", b"NaN", b",", b", ", b" ,", b",,", b"  ", b"\t", b"\r", b"[", b"]", b"[]", b"{", b"}", b'"', b"\\", b":",
    b'"input_ids"', b'"loss_mask": [1]', b'"input_ids": [5]', b'"id": "x", ', b'"flags": ["cut"], ', b"\xff", b"\xc3",
    b'"input\\u005fids": [1], ', b"-70770070077001", b'{"a": {"b": 1, "b": 2}}', b"\x00",
]  # fmt: skip


def fast(line: bytes, rules: Rules) -> tuple[Any, Judged | None] | None:
    """What the fast path makes of a line that stands between two others."""
    block = BLOCKS[rules]
    before, after = b'{"input_ids": [7, 1', b'1, 7], "loss_mask": [1]}'
    text = before + b"\n" + line + b"\n" + after
    block.buffer[: len(text)] = text
    block.classify(len(text))
    start = len(before) + 1
    measured = block.measure(start, start + len(line))
    return None if measured is None else (measured, take(line, 0, rules, Heads()))


def assert_agree(line: bytes, rules: Rules) -> bool:
    """Whether the fast path accepts the line; if so, the slow path must give the same row."""
    got = fast(line, rules)
    if got is None:
        return False
    measured, row = got
    slow = judge(line, rules)
    assert isinstance(slow, Judged), f"the fast path keeps a line that the rules drop as {slow}: {line!r}"
    assert row is not None
    assert numbers(row.ids) == numbers(slow.ids), f"other ids than the rules give: {line!r}"
    assert numbers(row.mask) == numbers(slow.mask), f"another mask than the rules give: {line!r}"
    assert (row.given_id, row.flags, row.extra) == (slow.given_id, slow.flags, slow.extra), line
    assert (row.tokens_in, row.tokens) == (slow.tokens_in, slow.tokens), line
    assert (measured.tokens_in, measured.tokens) == (slow.tokens_in, slow.tokens), line
    assert measured.labels == slow.labels, f"counts other labels than there are: {line!r}"
    assert (measured.ids_size, measured.mask_size) == (len(row.ids), len(row.mask)), (
        f"sizes are off: {line!r}"
    )
    return True


def numbers(text: bytes) -> list[int]:
    return orjson.loads(b"[" + text + b"]")


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Valid rows in many forms."""
    length = draw(st.integers(1, 9))
    ids = st.lists(
        st.sampled_from([0, 5, 10, 99, 100, 163839, 163840, 999999, 1000000]),
        min_size=length,
        max_size=length,
    )
    fields: dict[str, Any] = {
        "input_ids": draw(ids),
        "loss_mask": draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)),
    }
    fields |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.sampled_from(["a", "ü~2", 7, None, "x#1", '"input_ids": [1]']),
                "flags": st.sampled_from([[], ["greedy"], ["cut"], ["greedy", "exact"]]),
                "dataset": st.just("d"),
                "more": st.sampled_from([1, [1, 2], {"a": 1, "b": {"a": 2}}, 'x: "y", ]', None, 1.5]),
            },
        )
    )
    keys = draw(st.permutations(list(fields)))
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]))
    text = json.dumps(
        {key: fields[key] for key in keys}, separators=separators, ensure_ascii=draw(st.booleans())
    )
    return text.encode()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=lines(), rules=st.sampled_from(RULES), seed=st.integers(0, 2**32))
def test_what_the_fast_path_accepts_the_rules_accept_too(line: bytes, rules: Rules, seed: int) -> None:
    assert_agree(line, rules)
    generator = random.Random(seed)
    for _ in range(MUTATIONS):
        at = generator.randrange(len(line) + 1)
        gone = generator.choice([0, 0, 1, 1, 2, 5])
        new = generator.choice(PIECES) if generator.random() < 0.8 else b""
        if generator.random() < 0.2:  # a piece of the line itself
            start = generator.randrange(len(line))
            new = line[start : start + generator.randrange(1, 12)]
        mutated = line[:at] + new + line[at + gone :]
        if b"\n" not in mutated and mutated:
            assert_agree(mutated, rules)
            if generator.random() < 0.5:
                line = mutated


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
@pytest.mark.parametrize("mask_first", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"id": "a:b", "dataset": "d", "flags": ["greedy"]}, {"source": {"a": '\\"'}}]
)
def test_the_usual_forms_take_the_fast_path(
    separators: tuple[str, str], mask_first: bool, more: dict[str, Any]
) -> None:
    lists = {"input_ids": [0, 15, 163583], "loss_mask": [0, 1, 1]}
    fields = dict(reversed(lists.items())) if mask_first else lists
    for form in ({**fields, **more}, {**more, **fields}):
        line = json.dumps(form, separators=separators).encode()
        assert assert_agree(line, RULES[3]), f"slow without need: {line!r}"


@pytest.mark.parametrize(
    "line",
    [
        b'{"a\\"input_ids": [1, 2], "loss_mask": [0, 1], "input_ids": [-70770070077001]}',
        b'{"note": "\\"input_ids\\": [1, 2]", "loss_mask": [1], "input\\u005fids": [3]}',
        b'{"meta": {"input_ids": [1]}, "loss_mask": [1], "input_ids": [2]}',
        b'{"input_ids": [1, 2], "loss_mask": [1, 1], "input_ids": []}',
        b'{"input_ids": [1, 2], "input\\u005fids": [], "loss_mask": [1, 1]}',
        b'{"input_ids": [01, 2], "loss_mask": [1, 1]}',
        b'{"input_ids": [1 2], "loss_mask": [1]}',
        b'{"input_ids": [1,2,], "loss_mask": [1, 1]}',
        b'{"input_ids": [1, 2], "loss_mask": [10,1]}',
        b'{"input_ids": [1, 2], "loss_mask": [1-1]}',
        b'{"input_ids": [1, 2], "loss_mask": [1!1]}',
        b'{"input_ids": [1, 2, 3], "loss_mask": [1,10,11]}',
        b'{"input_ids": [1, 2, 3], "loss_mask": [1000, 1]}',
        b'{"input_ids": [1], "loss_mask": [1]} trailing',
        b'{"input_ids": [1, 2, "loss_mask": [1, 1]}',
    ],
)
def test_lines_made_to_deceive_are_left_to_the_rules(line: bytes) -> None:
    for rules in RULES:
        assert_agree(line, rules)
        assert fast(line, rules) is None or isinstance(judge(line, rules), Judged)


def test_a_number_is_measured_against_the_vocabulary_by_its_value() -> None:
    for limit in (2, 9, 10, 11, 99, 100, 128, 32_000, 163_840, 999_999, 1_000_000, 1_000_001):
        rules = Rules(8, "token", 1, limit)
        BLOCKS[rules] = Block(1 << 12, rules)
        for value in {0, limit - 1, limit, limit + 1, 10 * limit, limit // 10}:
            line = b'{"input_ids": [0, %d], "loss_mask": [1, 1]}' % value
            accepted = assert_agree(line, rules)
            assert isinstance(judge(line, rules), Judged) == (value < limit), (
                f"{value} of a vocabulary of {limit}"
            )
            if value < min(limit, 10**6):
                assert accepted, f"{value} below {limit} took the slow path"
