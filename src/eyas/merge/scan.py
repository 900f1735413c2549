"""The first pass: every line of every file is judged once; what is kept of that is 29 bytes a line."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
import xxhash

from ..core.errors import EyasError
from .index import NAMELESS, SIZE, SLOW
from .rules import INVALID, MAX_LINE, Drop, Judged, Rules, judge

SEGMENT = 32 << 20
"""Bytes of a piece of a file that one worker scans."""
BLOCK = 192 << 10
"""Bytes read at a time: with the arrays made of them they stay in a core's second-level cache."""
LONGEST = (1 << 32) - 1
EXAMPLES = 3

KEPT, BLANK = 0, 255
REASON_CODES = {reason: code for code, reason in enumerate(INVALID, 1)}

FACTS = np.dtype([("tokens_in", "<u4"), ("tokens", "<u4"), ("labels", "<u4"), ("id_hash", "<u8"), ("reason", "u1")])
"""What the first pass keeps of a line on the disk. id_hash: of its own id, 0 without one."""

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Segment:
    """The lines of a file that begin in [start, end). with_keys: digests for finding equal rows are wanted."""

    file: int
    path: Path
    start: int
    end: int
    dataset: str
    rules: Rules
    with_keys: bool


@dataclass
class Scanned:
    """What a segment holds, a column entry per line."""

    lengths: array[int] = field(default_factory=lambda: array("I"))
    words: array[int] = field(default_factory=lambda: array("I"))
    tokens_in: array[int] = field(default_factory=lambda: array("I"))
    tokens: array[int] = field(default_factory=lambda: array("I"))
    labels: array[int] = field(default_factory=lambda: array("I"))
    id_hashes: array[int] = field(default_factory=lambda: array("Q"))
    reasons: bytearray = field(default_factory=bytearray)
    keys: bytearray = field(default_factory=bytearray)
    examples: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    odd_names: bool = False
    columns: set[str] = field(default_factory=set)

    def facts(self) -> np.ndarray:
        facts = np.empty(len(self.lengths), FACTS)
        for name in ("tokens_in", "tokens", "labels"):
            facts[name] = np.frombuffer(getattr(self, name), np.uint32)
        facts["id_hash"] = np.frombuffer(self.id_hashes, np.uint64)
        facts["reason"] = np.frombuffer(self.reasons, np.uint8)
        return facts


def segments(file: int, path: Path, size: int, dataset: str, rules: Rules, with_keys: bool) -> list[Segment]:
    starts = range(0, size, SEGMENT)
    return [Segment(file, path, at, min(at + SEGMENT, size), dataset, rules, with_keys) for at in starts]


def scan(segment: Segment) -> Scanned:
    """Judge the lines of a segment."""
    scanned = Scanned()
    frame = len(orjson.dumps(segment.dataset))
    for line, length in lines_of(segment):
        _add(scanned, line, length, frame, segment)
    return scanned


def lines_of(segment: Segment) -> Iterator[tuple[bytes, int]]:
    """(line without its end or a byte order mark, bytes in the file) of the segment's lines."""
    with open(segment.path, "rb") as file:
        if segment.start:
            file.seek(segment.start - 1)
            file.readline()
        while file.tell() < segment.end:
            at = file.tell()
            line = file.readline(MAX_LINE + 2)
            length = len(line)
            if length == MAX_LINE + 2 and not line.endswith(b"\n"):
                while more := file.readline(BLOCK):
                    length += len(more)
                    if more.endswith(b"\n"):
                        break
            if length > LONGEST:
                raise EyasError("a line is longer than 4 GiB", file=segment.path, mend="is it a file of token rows?")
            if at == 0 and line.startswith(BOM):
                line = line[len(BOM) :]
            if line.endswith(b"\n"):
                line = line[:-1]
            yield line, length


def _add(scanned: Scanned, line: bytes, length: int, frame: int, segment: Segment) -> None:
    scanned.lengths.append(length)
    if not line.strip():
        _add_dropped(scanned, BLANK, 0)
        return
    judged = judge(line, segment.rules)
    if isinstance(judged, Drop):
        found = scanned.examples.setdefault(judged.reason, [])
        if len(found) < EXAMPLES:
            found.append((len(scanned.lengths) - 1, judged.found))
        _add_dropped(scanned, REASON_CODES[judged.reason], judged.tokens_in)
    else:
        _add_row(scanned, judged, frame, SLOW)
    if segment.with_keys:
        kept = isinstance(judged, Judged)
        scanned.keys += row_key(judged.ids, judged.mask) if kept else bytes(16)


def row_key(ids: bytes, mask: bytes) -> bytes:
    """What equal rows have in common: the digest of ids and mask as compact text."""
    return xxhash.xxh3_128_digest(ids + b"|" + mask)


def _add_dropped(scanned: Scanned, code: int, tokens_in: int) -> None:
    scanned.words.append(0)
    scanned.tokens_in.append(tokens_in)
    scanned.tokens.append(0)
    scanned.labels.append(0)
    scanned.id_hashes.append(0)
    scanned.reasons.append(code)


def _add_row(scanned: Scanned, row: Judged, frame: int, marks: int) -> None:
    size = row.size + frame
    if row.given_id is None:
        marks |= NAMELESS
        scanned.id_hashes.append(0)
    else:
        size += len(orjson.dumps(row.given_id))
        scanned.id_hashes.append(xxhash.xxh3_64_intdigest(row.given_id.encode()) or 1)
        scanned.odd_names |= "~" in row.given_id or "#" in row.given_id
    assert size < SIZE
    scanned.words.append(size | marks)
    scanned.tokens_in.append(row.tokens_in)
    scanned.tokens.append(row.tokens)
    scanned.labels.append(row.labels)
    scanned.reasons.append(KEPT)
