"""The fast path: lines in the plain form are checked and cut as bytes, without parsing their lists.

Plain form: both lists written as JSON integers with "," or ", " between them, nothing else inside. Then

- the ids are checked by byte classes over a whole block of lines at once (which byte may follow which, no leading
  zero, no number of too many digits), at about 0.6 ns a byte;
- a 0/1 list is a text of fixed stride, so one exclusive or with the text of zeros leaves its labels and shows every
  fault;
- what remains of the line when the insides of its lists are replaced by a mark is parsed as JSON, by the same
  functions as in `rules.judge`.

Whatever is not surely plain is left to `judge`. The property that matters: where this path accepts a line, `judge`
gives the same row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from eyas.merge.rules import Drop, Head, Judged, Rules, cut_length, judge_head, parse_object

_IDS_KEY = b'"input_ids"'
_MASK_KEY = b'"loss_mask"'
_IDS_MARK, _MASK_MARK = -70770070077001, -70770070077002
_IDS_TEXT, _MASK_TEXT = b"%d" % _IDS_MARK, b"%d" % _MASK_MARK
_MOST_DIGITS = 6
"""Ids of more digits are left to the slow path; no vocabulary has a million entries yet."""
_MANY_HEADS = 256


class Places(NamedTuple):
    """Where the insides of the two lists begin and end within a line's buffer."""

    ids_start: int
    ids_end: int
    mask_start: int
    mask_end: int


class Measured(NamedTuple):
    """A plain line that gives a row: lengths of its parts in the output, and its counts."""

    head: Head
    ids_size: int
    mask_size: int
    tokens_in: int
    tokens: int
    labels: int

    @property
    def flags(self) -> bytes:
        return self.head.cut_flags if self.tokens < self.tokens_in else self.head.flags


def locate(text: bytes | bytearray, start: int, end: int) -> Places | None:
    """The insides of the two lists of a line, if it has them in plain sight."""
    ids_key = text.find(_IDS_KEY, start, end)
    if ids_key < 0:
        return None
    ids_start = _open(text, ids_key + len(_IDS_KEY))
    ids_end = text.find(b"]", ids_start, end)
    mask_key = text.find(_MASK_KEY, ids_end, end)
    if mask_key < 0:
        mask_key = text.find(_MASK_KEY, start, ids_key)
    mask_start = _open(text, mask_key + len(_MASK_KEY))
    mask_end = text.find(b"]", mask_start, end)
    if min(ids_start, ids_end, mask_key, mask_start, mask_end) < 0:
        return None
    return Places(ids_start, ids_end, mask_start, mask_end)


def _open(text: bytes | bytearray, at: int) -> int:
    """The place after `:[` or `: [`; -1 if neither is there."""
    if text.startswith(b": [", at):
        return at + 3
    return at + 2 if text.startswith(b":[", at) else -1


class Heads:
    """Lines without the insides of their lists, parsed; those without a row id are remembered, as they recur."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def read(self, text: bytes | bytearray, start: int, end: int, places: Places) -> Head | None:
        """The head of a line, or None if the slow path has to say what it is."""
        ids_start, ids_end, mask_start, mask_end = places
        if ids_start < mask_start:
            parts = text[start:ids_start], _IDS_TEXT, text[ids_end:mask_start], _MASK_TEXT, text[mask_end:end]
        else:
            parts = text[start:mask_start], _MASK_TEXT, text[mask_end:ids_start], _IDS_TEXT, text[ids_end:end]
        outline = b"".join(parts)
        head = self._known.get(outline)
        if head is None:
            head = _parse_outline(outline)
            if head is not None and head.given_id is None and len(self._known) < _MANY_HEADS:
                self._known[outline] = head
        return head


def _parse_outline(outline: bytes) -> Head | None:
    """The marks, each written once, prove that the lists found are those under the two keys of the row itself."""
    if outline.count(_IDS_TEXT) != 1 or outline.count(_MASK_TEXT) != 1:
        return None
    fields = parse_object(outline)
    if (
        isinstance(fields, Drop)
        or fields.get("input_ids") != [_IDS_MARK]
        or fields.get("loss_mask") != [_MASK_MARK]
    ):
        return None
    head = judge_head(fields)
    return None if isinstance(head, Drop) else head


class Block:
    """A buffer of whole lines, with its byte classes."""

    def __init__(self, capacity: int, rules: Rules) -> None:
        self.rules = rules
        self.heads = Heads()
        self.capacity = capacity
        self.buffer = bytearray(capacity)
        self._bytes = np.frombuffer(self.buffer, np.uint8)
        self._values = np.empty(capacity, np.uint8)
        self._digit, self._comma, self._space, self._run = (np.empty(capacity, np.bool_) for _ in range(4))
        self._faults = bytearray(capacity)
        self._fault = np.frombuffer(self._faults, np.bool_)
        self._scratch = np.empty(capacity, np.bool_)
        self._zeros = {step: _zeros(capacity, step) for step in (2, 3)}

    def classify(self, size: int) -> None:
        """Mark every byte of the first `size` that could not stand where it does inside a plain list."""
        text, values, digit = self._bytes[:size], self._values[:size], self._digit[:size]
        comma, space, fault = self._comma[:size], self._space[:size], self._fault[:size]
        scratch = self._scratch[:size]
        np.subtract(text, 48, out=values)
        np.less(values, 10, out=digit)
        np.equal(text, 44, out=comma)
        np.equal(text, 32, out=space)
        np.bitwise_or(digit, comma, out=fault)
        np.bitwise_or(fault, space, out=fault)
        np.logical_not(fault, out=fault)
        np.greater(comma[1:], digit[:-1], out=scratch[1:])  # a comma not after a digit
        np.bitwise_or(fault[1:], scratch[1:], out=fault[1:])
        np.greater(space[1:], comma[:-1], out=scratch[1:])  # a space not after a comma
        np.bitwise_or(fault[1:], scratch[1:], out=fault[1:])
        self._mark_leading_zeros(size)
        self._mark_large_ids(size)

    def _mark_leading_zeros(self, size: int) -> None:
        values, digit, fault = self._values[:size], self._digit[:size], self._fault[:size]
        zero, scratch = self._run[:size], self._scratch[:size]
        np.equal(values, 0, out=zero)
        np.greater(zero[1:-1], digit[:-2], out=scratch[1:-1])
        np.bitwise_and(scratch[1:-1], digit[2:], out=scratch[1:-1])
        np.bitwise_or(fault[1:-1], scratch[1:-1], out=fault[1:-1])

    def _mark_large_ids(self, size: int) -> None:
        """Mark the last digit of numbers that have too many digits, or as many as the limit and lie not below it."""
        limit = self.rules.id_limit
        digits = min(len(str(limit - 1)), _MOST_DIGITS)
        run, longer = self._run[:size], self._scratch[:size]
        have = 1
        source = self._digit[:size]
        while have < digits:
            step = min(have, digits - have)
            target = longer if source is run else run
            target[:step] = False
            np.bitwise_and(source[step:], source[:-step], out=target[step:])
            source = target
            have += step
        other = run if source is longer else longer
        other[0] = False
        np.bitwise_and(source[1:], source[:-1], out=other[1:])
        fault = self._fault[:size]
        np.bitwise_or(fault, other, out=fault)
        if limit < 10**digits:
            ends = np.flatnonzero(source)
            fault[ends[self._not_below(ends, digits, limit)]] = True

    def _not_below(self, ends: np.ndarray, digits: int, limit: int) -> np.ndarray:
        """Which of the numbers of `digits` digits that end at `ends` are not below `limit`."""
        values = np.zeros(len(ends), np.int32)
        for place in range(digits):
            values += self._values[ends - place].astype(np.int32) * 10**place
        return values >= limit

    def measure(self, start: int, end: int) -> Measured | None:
        """What the line in [start, end) gives, if it is plain and gives a row."""
        places = locate(self.buffer, start, end)
        if places is None:
            return None
        ids_start, ids_end, mask_start, mask_end = places
        if ids_start == ids_end or self._faults.find(1, ids_start, ids_end) >= 0:
            return None
        if not self._digit[ids_end - 1] or self._faults.find(1, mask_start, mask_end) >= 0:
            return None
        tokens_in = int(np.count_nonzero(self._comma[ids_start:ids_end])) + 1
        mask_bytes = mask_end - mask_start
        step = 3 if mask_bytes == 3 * tokens_in - 2 else 2
        if mask_bytes != step * (tokens_in - 1) + 1:
            return None
        labels = self._values[mask_start:mask_end]
        np.bitwise_xor(self._bytes[mask_start:mask_end], self._zeros[step][:mask_bytes], out=labels)
        if labels.max() > 1:
            return None
        head = self.heads.read(self.buffer, start, end, places)
        if head is None:
            return None
        tokens = tokens_in
        if tokens_in > self.rules.max_seq_len:
            tokens = _tokens_kept(labels[::step], self.rules)
            if tokens == 0:
                return None
            ids_end = ids_start + _end_of_token(self._comma[ids_start:ids_end], tokens)
            labels = labels[: step * (tokens - 1) + 1]
        num_labels = int(np.count_nonzero(labels.view(np.bool_)))
        if num_labels < self.rules.min_trainable:
            return None
        spaces = int(np.count_nonzero(self._space[ids_start:ids_end]))
        return Measured(head, ids_end - ids_start - spaces, 2 * tokens - 1, tokens_in, tokens, num_labels)


def take(line: bytes, rules: Rules, heads: Heads) -> Judged | None:
    """The row of a line that `Block.measure` accepted; nothing is checked again. None if it is another line now."""
    places = locate(line, 0, len(line))
    if places is None:
        return None
    ids_start, ids_end, mask_start, mask_end = places
    head = heads.read(line, 0, len(line), places)
    mask_bytes = mask_end - mask_start
    step = 3 if line.startswith(b", ", mask_start + 1) else 2
    if head is None or mask_bytes % step != 1:
        return None
    tokens = tokens_in = (mask_bytes - 1) // step + 1
    flags = head.flags
    if tokens_in > rules.max_seq_len:
        labels = np.frombuffer(line, np.uint8, mask_bytes, mask_start)[::step] == 49
        tokens = _tokens_kept(labels, rules)
        comma = np.frombuffer(line, np.uint8, ids_end - ids_start, ids_start) == 44
        ids_end = ids_start + _end_of_token(comma, tokens)
        mask_end = mask_start + step * (tokens - 1) + 1
        flags = head.cut_flags
    ids, mask = line[ids_start:ids_end], line[mask_start:mask_end]
    if b" " in ids:
        ids = ids.translate(None, b" ")
    if step == 3:
        mask = mask.translate(None, b" ")
    return Judged(head.given_id, ids, mask, flags, head.extra, tokens_in, tokens, -1)


def _tokens_kept(labels: np.ndarray, rules: Rules) -> int:
    return rules.max_seq_len if rules.cut == "token" else cut_length(labels.tobytes(), rules)


def _end_of_token(comma: np.ndarray, tokens: int) -> int:
    """Where the text of the first `tokens` ids ends; more than those are there."""
    return int(np.flatnonzero(comma)[tokens - 1])


def _zeros(size: int, step: int) -> np.ndarray:
    """The text of a list of zeros, with "," or ", " between them."""
    unit = b"0, " if step == 3 else b"0,"
    return np.frombuffer(unit * (size // step + 1), np.uint8)[:size]
