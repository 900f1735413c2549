"""The first pass: every line is judged once; what is kept of it is a record of 29 bytes."""

from __future__ import annotations

import functools
import os
import struct
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import orjson
import xxhash

from eyas.core.errors import EyasError
from eyas.merge.fast import Block, labels_of, take
from eyas.merge.index import NAMELESS, SIZE, SLOW
from eyas.merge.reasons import INVALID, MAX_LINE
from eyas.merge.rules import Drop, Judged, Rules, judge

SEGMENT = 16 << 20
"""Bytes of a piece of a file that one worker scans."""
BLOCK = 384 << 10
"""Bytes read at a time: with the arrays made of them some 3 MB. Longer lines make it grow up to MAX_BLOCK."""
MAX_BLOCK = 4 << 20
_STEP = 32 << 10
"""Bytes read at a time where only the next line end is wanted."""
LONGEST = (1 << 32) - 1
EXAMPLES = 3
"""Dropped lines that are shown for each reason."""

KEPT, BLANK = 0, 255
REASON_CODES = {reason: code for code, reason in enumerate(INVALID, 1)}

RECORD = np.dtype(
    [
        ("length", "<u4"),
        ("word", "<u4"),
        ("tokens_in", "<u4"),
        ("tokens", "<u4"),
        ("labels", "<u4"),
        ("id_hash", "<u8"),
        ("reason", "u1"),
    ]
)
"""What the first pass says of a line. id_hash: of the row's own id, 0 without one."""
_PACK = struct.Struct("<IIIIIQB").pack

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Segment:
    """The lines of a file that begin in [start, end). also: what is wanted beside the records.

    `keys`: digests for finding equal rows. `labels`: where each row has as many labels as it needs.
    """

    path: Path
    start: int
    end: int
    dataset: str
    rules: Rules
    also: Literal["", "keys", "labels"] = ""


@dataclass
class Scanned:
    """What a segment holds. examples: reason -> (line within the segment from 0, what was found).

    keys: 16 bytes a line, zeros where there is no row. enough: for each row, the tokens that hold `min_trainable`
    labels.
    """

    records: bytearray = field(default_factory=bytearray)
    keys: bytearray = field(default_factory=bytearray)
    enough: array[int] = field(default_factory=lambda: array("I"))
    examples: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    has_odd_ids: bool = False

    def table(self) -> np.ndarray:
        """The records as an array of RECORD."""
        return np.frombuffer(self.records, RECORD)


def segments(
    path: Path, size: int, dataset: str, rules: Rules, also: Literal["", "keys", "labels"] = ""
) -> list[Segment]:
    """The pieces of a file, in order."""
    starts = range(0, size, SEGMENT)
    return [Segment(path, at, min(at + SEGMENT, size), dataset, rules, also) for at in starts]


def scan(segment: Segment) -> Scanned:
    """Judge the lines that begin in a segment."""
    return _Scan(segment).run()


@functools.lru_cache(maxsize=1)
def _block(rules: Rules) -> Block:
    return Block(BLOCK, rules)


class _Scan:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.rules = segment.rules
        self.block = _block(segment.rules)
        self.scanned = Scanned()
        self.frame = len(orjson.dumps(segment.dataset))
        self.handle = os.open(segment.path, os.O_RDONLY)

    def run(self) -> Scanned:
        try:
            at = self._first_line()
            while at < self.segment.end:
                at = self._read_block(at)
        finally:
            os.close(self.handle)
        return self.scanned

    def _first_line(self) -> int:
        """The place of the first line that begins in the segment."""
        start = self.segment.start
        return self._after_line(start - 1) if start else 0

    def _after_line(self, at: int) -> int:
        """The place after the first line end at or after `at`, or the end of the file."""
        while chunk := os.pread(self.handle, _STEP, at):
            end = chunk.find(b"\n")
            if end >= 0:
                return at + end + 1
            at += len(chunk)
        return at

    def _read_block(self, at: int) -> int:
        """Judge the whole lines of a block that begin before the segment's end; the place after them."""
        block = self.block
        size = os.preadv(self.handle, [block.buffer], at)
        end = block.buffer.rfind(b"\n", 0, size) + 1
        if size < block.capacity and end < size and not os.pread(self.handle, 1, at + size):
            end = size  # the last line of a file may lack its end
        if end == 0:
            return self._long_line(at) if size else self.segment.end
        last = self.segment.end - at - 1
        if last < end - 1:  # the lines from the next segment's first on are not ours
            end = block.buffer.find(b"\n", last, end) + 1 or end
        block.classify(end)
        self._judge_lines(end, at)
        return at + end

    def _judge_lines(self, size: int, at: int) -> None:
        buffer = self.block.buffer
        start = 0
        while start < size:
            end = buffer.find(b"\n", start, size)
            after = end + 1
            if end < 0:
                end = after = size
            self._judge_line(start or start_of(buffer, at), end, after - start)
            start = after

    def _judge_line(self, start: int, end: int, length: int) -> None:
        measured = self.block.measure(start, end)
        if measured is None:
            self._judge_slowly(bytes(self.block.buffer[start:end]), length)
            return
        head, ids_size, mask_size, tokens_in, tokens, labels = measured
        size = ids_size + mask_size + head.size(tokens < tokens_in)
        self._keep(length, size, 0, head.given_id, tokens_in, tokens, labels)
        if self.segment.also:
            row = take(bytes(self.block.buffer[start:end]), 0, self.rules, self.block.heads)
            assert row is not None
            self._add_also(row)

    def _judge_slowly(self, line: bytes, length: int) -> None:
        if not line.strip():
            self._drop(length, BLANK, 0)
            return
        judged = judge(line, self.rules)
        if isinstance(judged, Drop):
            self._note(judged)
            self._drop(length, REASON_CODES[judged.reason], judged.tokens_in)
        else:
            self._keep(
                length, judged.size, SLOW, judged.given_id, judged.tokens_in, judged.tokens, judged.labels
            )
            self._add_also(judged)

    def _long_line(self, at: int) -> int:
        """A line that the block does not hold: a larger block, or the slow path for this line alone."""
        if self.block.capacity < MAX_BLOCK:
            self.block = Block(min(2 * self.block.capacity, MAX_BLOCK), self.rules)
            return at
        after = self._after_line(at)
        if after - at > LONGEST:
            raise EyasError(
                "a line is longer than 4 GiB", file=self.segment.path, mend="is it a file of token rows?"
            )
        line = os.pread(self.handle, min(after - at, MAX_LINE + 2), at)
        self._judge_slowly(line_of(line, at), after - at)
        return after

    def _keep(
        self,
        length: int,
        size: int,
        marks: int,
        given_id: str | None,
        tokens_in: int,
        tokens: int,
        labels: int,
    ) -> None:
        size += self.frame
        id_hash = 0
        if given_id is None:
            marks |= NAMELESS
        else:
            size += len(orjson.dumps(given_id))
            id_hash = id_digest(given_id)
            self.scanned.has_odd_ids |= "~" in given_id or "#" in given_id
        assert size < SIZE
        self.scanned.records += _PACK(length, size | marks, tokens_in, tokens, labels, id_hash, KEPT)

    def _drop(self, length: int, code: int, tokens_in: int) -> None:
        self.scanned.records += _PACK(length, 0, tokens_in, 0, 0, 0, code)
        if self.segment.also == "keys":
            self.scanned.keys += bytes(16)

    def _add_also(self, row: Judged) -> None:
        if self.segment.also == "keys":
            self.scanned.keys += row_key(row)
        elif self.segment.also == "labels":
            needed = self.rules.min_trainable
            self.scanned.enough.append(
                int(np.flatnonzero(labels_of(row.mask))[needed - 1]) + 1 if needed else 0
            )

    def _note(self, drop: Drop) -> None:
        found = self.scanned.examples.setdefault(drop.reason, [])
        if len(found) < EXAMPLES:
            found.append((len(self.scanned.records) // RECORD.itemsize, drop.found))


def start_of(text: bytes | bytearray, at: int) -> int:
    """Where a line begins within its bytes: a file may begin with a byte order mark. `at`: its place in the file."""
    return len(BOM) if at == 0 and text.startswith(BOM) else 0


def line_of(text: bytes, at: int) -> bytes:
    """A line as it is judged: without its end and without a byte order mark."""
    return text.removesuffix(b"\n")[start_of(text, at) :]


def id_digest(name: str) -> int:
    """xxh3-64 of a row id; never 0, which says that there is no id."""
    return xxhash.xxh3_64_intdigest(name.encode()) or 1


def row_key(row: Judged) -> bytes:
    """What equal rows have in common, however they are spaced: the digest of ids and mask."""
    return xxhash.xxh3_128_digest((row.ids + b"|" + row.mask).translate(None, b" "))
