"""The rules: what a line must be to become a row, why else it is dropped, and what the row then is.

`judge` is the definition. It is exact and slow (it parses the whole line); `fast.py` accepts only what
`judge` accepts and writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from eyas.core.rows import CUT
from eyas.merge.reasons import (
    BAD_FLAGS,
    BAD_ID,
    BAD_MASK,
    DUPLICATE_KEY,
    EMPTY,
    LINE_TOO_LONG,
    MAX_LINE,
    NAN,
    NEGATIVE,
    NO_IDS,
    NO_MASK,
    NOT_INTEGER,
    NOT_JSON,
    NOT_LIST,
    NOT_OBJECT,
    NOT_UTF8,
    OUTSIDE,
    TOO_FEW_LABELS,
    TOO_LARGE,
    UNEQUAL,
)

ID_LIMIT = 2**31
"""Ids are stored as int32 by every later stage."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about a line by itself. id_limit: ids must lie below it."""

    max_seq_len: int
    cut: Literal["token", "turn"]
    min_trainable: int
    vocab_size: int | None

    @property
    def id_limit(self) -> int:
        return ID_LIMIT if self.vocab_size is None else min(self.vocab_size, ID_LIMIT)


@dataclass(frozen=True, slots=True)
class Drop:
    """A line that gives no row. tokens_in: its tokens, where it is well formed and only lacks labels."""

    reason: str
    found: str = ""
    tokens_in: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that is kept: `ids` and `mask` after the cut, as the texts between the brackets, spaces allowed.

    given_id: the row's own id, None if it has none. flags: a JSON list, `cut` already in it. extra: further
    keys as JSON text that begins with a comma, or nothing.
    """

    given_id: str | None
    ids: bytes
    mask: bytes
    flags: bytes
    extra: bytes
    tokens_in: int
    tokens: int

    @property
    def labels(self) -> int:
        return self.mask.count(b"1")

    @property
    def size(self) -> int:
        """Bytes of the row's line without its id and its dataset."""
        return FRAME + len(self.ids) + len(self.mask) + len(self.flags) + len(self.extra)

    def line(self, id_json: bytes, dataset_json: bytes) -> tuple[bytes, ...]:
        """The pieces of the row's line, in the form of `core.rows.TokenRow.line`, further keys after its five."""
        head = b'{"id":%b,"dataset":%b,"input_ids":[' % (id_json, dataset_json)
        return head, self.ids, b'],"loss_mask":[', self.mask, b'],"flags":', self.flags, self.extra, b"}\n"


FRAME = len(b'{"id":,"dataset":,"input_ids":[],"loss_mask":[],"flags":}\n')
_OWN_KEYS = ("id", "dataset", "input_ids", "loss_mask", "flags")


def judge(line: bytes, rules: Rules) -> Judged | Drop:
    """The row that `line` (without its end) gives, or why it gives none. Exact; parses everything."""
    if len(line) > MAX_LINE:
        return Drop(LINE_TOO_LONG, f"{len(line)} bytes")
    fields = parse_object(line)
    if isinstance(fields, Drop):
        return fields
    head = judge_head(fields)
    if isinstance(head, Drop):
        return head
    return _judge_tokens(fields["input_ids"], fields["loss_mask"], head, rules)


def parse_object(text: bytes) -> dict[str, Any] | Drop:
    """`text` as one JSON object without repeated keys."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _why_not_json(text, error)
    if not isinstance(fields, dict):
        return Drop(NOT_OBJECT, _kind(fields))
    if repeated := _repeated_key(text, fields):
        return Drop(DUPLICATE_KEY, repeated)
    if _LONG_NUMBER.search(text):
        return _parse_exactly(text)
    return fields


_LONG_NUMBER = re.compile(rb"[0-9]{20}")


def _parse_exactly(text: bytes) -> dict[str, Any] | Drop:
    """Valid JSON with integers of any length as they are; orjson makes floats of those over 64 bits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Drop(NOT_JSON, str(error))


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer over 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Head:
    """A row without its two lists."""

    given_id: str | None
    flags: bytes
    cut_flags: bytes
    extra: bytes

    def size(self, is_cut: bool) -> int:
        """Bytes of the row's line without its id, its dataset and the insides of its lists."""
        return FRAME + len(self.cut_flags if is_cut else self.flags) + len(self.extra)


def judge_head(fields: dict[str, Any]) -> Head | Drop:
    """Everything but the insides of the two lists, which must be there."""
    for key, reason in (("input_ids", NO_IDS), ("loss_mask", NO_MASK)):
        if key not in fields:
            return Drop(reason)
        if not isinstance(fields[key], list):
            return Drop(NOT_LIST, f"{key} is {_kind(fields[key])}")
    given = fields.get("id")
    if given is not None and type(given) not in (str, int):
        return Drop(BAD_ID, _kind(given))
    flags = fields.get("flags", [])
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        return Drop(BAD_FLAGS, repr(flags)[:80])
    extra = {key: value for key, value in fields.items() if key not in _OWN_KEYS}
    return Head(
        given_id=None if given is None else str(given),
        flags=orjson.dumps(flags),
        cut_flags=orjson.dumps(flags if CUT in flags else [*flags, CUT]),
        extra=b"," + _dumps(extra)[1:-1] if extra else b"",
    )


def _judge_tokens(ids: list[Any], mask: list[Any], head: Head, rules: Rules) -> Judged | Drop:
    if not ids and not mask:
        return Drop(EMPTY)
    if len(ids) != len(mask):
        return Drop(UNEQUAL, f"{len(ids)} ids, {len(mask)} mask values")
    for place, value in enumerate(ids):
        if reason := _id_fault(value, rules):
            return Drop(reason, f"{value!r:.40} at {place}")
    for place, value in enumerate(mask):
        if type(value) is not int or value not in (0, 1):
            return Drop(BAD_MASK, f"{value!r:.40} at {place}")
    tokens = cut_length(mask, rules)
    labels = sum(mask[:tokens])
    if tokens == 0 or labels < rules.min_trainable:
        return Drop(TOO_FEW_LABELS, f"{labels} labels in {tokens} tokens", tokens_in=len(ids))
    return Judged(
        given_id=head.given_id,
        ids=orjson.dumps(ids[:tokens])[1:-1],
        mask=orjson.dumps(mask[:tokens])[1:-1],
        flags=head.cut_flags if tokens < len(ids) else head.flags,
        extra=head.extra,
        tokens_in=len(ids),
        tokens=tokens,
    )


def _id_fault(value: Any, rules: Rules) -> str | None:
    if type(value) is not int:
        return NOT_INTEGER
    if value < 0:
        return NEGATIVE
    if value < rules.id_limit:
        return None
    return TOO_LARGE if rules.vocab_size is None else OUTSIDE


def cut_length(mask: Sequence[int], rules: Rules) -> int:
    """Tokens that stay of a row: all that fit, or up to the end of the last whole turn that fits."""
    limit = rules.max_seq_len
    if len(mask) <= limit:
        return len(mask)
    if rules.cut == "token":
        return limit
    end = limit
    if mask[limit]:  # a turn goes on over the limit: step back to where it began
        while end and mask[end - 1]:
            end -= 1
    while end and not mask[end - 1]:
        end -= 1
    return end


_KINDS = {type(None): "null", bool: "a truth value", str: "text", list: "a list", dict: "an object"}


def _kind(value: Any) -> str:
    """What JSON calls a value."""
    return _KINDS.get(type(value), "a number")


def _why_not_json(text: bytes, error: orjson.JSONDecodeError) -> Drop:
    try:
        decoded = text.decode()
    except UnicodeDecodeError as fault:
        return Drop(NOT_UTF8, f"byte {text[fault.start]:#04x} at {fault.start}")
    constants: list[str] = []
    try:
        json.loads(decoded, parse_constant=constants.append)
    except (ValueError, RecursionError):
        constants.clear()
    if constants:
        return Drop(NAN, constants[0])
    return Drop(NOT_JSON, str(error))


_STRING_OR_BRACE = re.compile(rb'("(?:[^"\\]|\\.)*")([ \t\r\n]*:)?|[{}]', re.DOTALL)


def _repeated_key(text: bytes, fields: dict[str, Any]) -> str | None:
    """A key that occurs twice in one object of the valid JSON `text`, at any depth.

    As many colons as keys at the top, or a text that is what its value is written as, rule it out at once.
    """
    if text.count(b":") == len(fields) or orjson.dumps(fields) == text:
        return None
    open_objects: list[set[str]] = []
    for match in _STRING_OR_BRACE.finditer(text):
        string, colon = match.groups()
        if string is None:
            if match[0] == b"{":
                open_objects.append(set())
            else:
                open_objects.pop()
        elif colon:
            key = orjson.loads(string)
            if key in open_objects[-1]:
                return key
            open_objects[-1].add(key)
    return None
