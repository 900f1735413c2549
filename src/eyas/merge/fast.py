"""The fast path: lines in the plain form are checked and cut as bytes, without parsing their lists.

Plain form: both lists written as JSON integers with "," or ", " between them, nothing else inside. Then

- the ids are checked by byte classes over a whole block of lines at once (which byte may follow which, no leading
  zero, no number of too many digits), at about 0.6 ns a byte;
- a 0/1 list is a text of fixed stride, so one exclusive or with the text of zeros leaves its labels and shows every
  fault;
- what remains of the line when the insides of its lists are replaced by a mark is parsed as JSON, by the same
  functions as in `rules.judge`.

The lists are carried over as they are written, spaces and all: taking the spaces out would cost more than the whole
second pass. Whatever is not surely plain is left to `judge`. The property that matters: where this path accepts a
line, `judge` gives the same row.
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
    """A plain line that gives a row: the lengths of its lists in the output, and its counts."""

    head: Head
    ids_size: int
    mask_size: int
    tokens_in: int
    tokens: int
    labels: int


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
        self._fits = bytearray(capacity)
        self._fit = np.frombuffer(self._fits, np.bool_)
        self._scratch = np.empty(capacity, np.bool_)
        self._zeros = {step: _zeros(capacity, step) for step in (2, 3)}

    def classify(self, size: int) -> None:
        """Say of each of the first `size` bytes whether it could stand where it does inside a plain list."""
        text, values, digit = self._bytes[:size], self._values[:size], self._digit[:size]
        comma, space, fits = self._comma[:size], self._space[:size], self._fit[:size]
        scratch = self._scratch[:size]
        np.subtract(text, 48, out=values)
        np.less(values, 10, out=digit)
        np.equal(text, 44, out=comma)
        np.equal(text, 32, out=space)
        np.bitwise_and(comma[1:], digit[:-1], out=scratch[1:])  # a comma after a digit
        np.bitwise_or(digit[1:], scratch[1:], out=fits[1:])
        np.bitwise_and(space[1:], comma[:-1], out=scratch[1:])  # a space after a comma
        np.bitwise_or(fits, scratch, out=fits)
        self._refuse_leading_zeros(size)
        self._refuse_large_ids(size)

    def _refuse_leading_zeros(self, size: int) -> None:
        digit, fits = self._digit[:size], self._fit[:size]
        zero, scratch = self._run[:size], self._scratch[:size]
        np.equal(self._values[:size], 0, out=zero)
        np.greater(zero[1:], digit[:-1], out=scratch[1:])  # a zero that begins a number
        np.bitwise_and(scratch[:-1], digit[1:], out=zero[1:])
        np.greater(fits, zero, out=fits)

    def _refuse_large_ids(self, size: int) -> None:
        """Refuse the last digit of numbers with too many digits, or with as many as the limit and not below it."""
        limit = self.rules.id_limit
        digits = min(len(str(limit - 1)), _MOST_DIGITS)
        fits = self._fit[:size]
        if limit < 10**digits:
            ends = np.flatnonzero(self._runs(size, digits))
            fits[ends[self._not_below(ends, digits, limit)]] = False
        np.greater(fits, self._runs(size, digits + 1), out=fits)

    def _runs(self, size: int, length: int) -> np.ndarray:
        """Where `length` digits end, bool; by doubling, in log2(length) steps."""
        source, have = self._digit[:size], 1
        target, other = self._run[:size], self._scratch[:size]
        while have < length:
            step = min(have, length - have)
            target[:step] = False
            np.bitwise_and(source[step:], source[:-step], out=target[step:])
            source, target, other = target, other, target
            have += step
        return source

    def _not_below(self, ends: np.ndarray, digits: int, limit: int) -> np.ndarray:
        """Which of the numbers of `digits` digits that end at `ends` are not below `limit`."""
        values = np.zeros(len(ends), np.int32)
        for place in range(digits):
            values += self._values[ends - place].astype(np.int32) * 10**place
        return values >= limit

    def measure(self, start: int, end: int) -> Measured | None:
        """What the line in [start, end) gives, if it is plain and gives a row."""
        buffer, fits = self.buffer, self._fits
        places = locate(buffer, start, end)
        if places is None:
            return None
        ids_start, ids_end, mask_start, mask_end = places
        if fits.find(0, ids_start, ids_end) >= 0 or fits.find(0, mask_start, mask_end) >= 0:
            return None
        if not 48 <= buffer[ids_end - 1] <= 57:  # a comma at the end, or no ids at all
            return None
        tokens_in = int(np.count_nonzero(self._comma[ids_start:ids_end])) + 1
        mask_bytes = mask_end - mask_start
        step = 3 if mask_bytes == 3 * tokens_in - 2 else 2
        if mask_bytes != step * (tokens_in - 1) + 1:
            return None
        labels = self._values[mask_start:mask_end]
        np.bitwise_xor(self._bytes[mask_start:mask_end], self._zeros[step][:mask_bytes], out=labels)
        if np.maximum.reduce(labels) > 1:
            return None
        head = self.heads.read(buffer, start, end, places)
        if head is None:
            return None
        tokens = tokens_in
        if tokens_in > self.rules.max_seq_len:
            tokens = _tokens_kept(labels[::step], self.rules)
            if tokens == 0:
                return None
            ids_end = ids_start + int(np.flatnonzero(self._comma[ids_start:ids_end])[tokens - 1])
            labels = labels[: step * (tokens - 1) + 1]
        num_labels = int(np.count_nonzero(labels.view(np.bool_)))
        if num_labels < self.rules.min_trainable:
            return None
        return Measured(head, ids_end - ids_start, len(labels), tokens_in, tokens, num_labels)


def take(line: bytes, start: int, rules: Rules, heads: Heads) -> Judged | None:
    """The row of a line, from `start` on, that `Block.measure` accepted; None if it cannot be the same line any more.

    The line is not checked again. Its end may be with it.
    """
    places = locate(line, start, len(line))
    head = heads.read(line, start, len(line), places) if places else None
    if places is None or head is None:
        return None
    ids_start, ids_end, mask_start, mask_end = places
    mask_bytes = mask_end - mask_start
    step = 3 if line.startswith(b", ", mask_start + 1) else 2
    tokens = tokens_in = (mask_bytes - 1) // step + 1
    flags = head.flags
    if tokens_in > rules.max_seq_len:
        labels = np.frombuffer(line, np.uint8, mask_bytes, mask_start)[::step] == 49
        commas = np.flatnonzero(np.frombuffer(line, np.uint8, ids_end - ids_start, ids_start) == 44)
        if len(commas) != tokens_in - 1:
            return None
        tokens = _tokens_kept(labels, rules)
        ids_end = ids_start + int(commas[tokens - 1])
        mask_end = mask_start + step * (tokens - 1) + 1
        flags = head.cut_flags
    ids, mask = line[ids_start:ids_end], line[mask_start:mask_end]
    return Judged(head.given_id, ids, mask, flags, head.extra, tokens_in, tokens)


def labels_of(mask: bytes) -> np.ndarray:
    """The labels of a row's mask, bool [tokens]."""
    return np.frombuffer(mask, np.uint8)[:: 3 if b" " in mask else 2] == 49


def _tokens_kept(labels: np.ndarray, rules: Rules) -> int:
    return rules.max_seq_len if rules.cut == "token" else cut_length(labels.tobytes(), rules)


def _zeros(size: int, step: int) -> np.ndarray:
    """The text of a list of zeros, with "," or ", " between them."""
    unit = b"0, " if step == 3 else b"0,"
    return np.frombuffer(unit * (size // step + 1), np.uint8)[:size]
