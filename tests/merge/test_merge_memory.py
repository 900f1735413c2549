"""Memory is bound by chunks, not by the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eyas.merge.repeats import repeats
from token_sets import write_sets

LONG = bool(os.environ.get("EYAS_LONG"))

PEAK = """
def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
"""
"""MiB, of this process alone: what getrusage says would include the test process that it was forked from."""

LIMITED = """
import json, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
sys.path.insert(0, {helpers!r})
from token_sets import merge
manifest = merge(Path({out!r}), Path({sets!r}), dedup={dedup})
print(json.dumps([manifest.actual["records_kept"], manifest.actual["tokens_kept"], peak()]))
"""

INDEX = """
import json
from array import array
import numpy as np
from eyas.merge.arrange import shuffle
from eyas.merge.index import LineIndex
from eyas.merge.inputs import TokenFile
from pathlib import Path
before = peak()
rows, block = {rows}, 50_000
index = LineIndex([TokenFile("A", "a", Path("a"), Path("a"), "0", 0)])
index.begin_file()
for at in range(0, rows, block):
    count = min(block, rows - at)
    index.add(np.full(count, 20_000, np.uint32), np.full(count, 19_000, np.uint32), np.zeros(count, bool))
order = array("I", range(rows))
shuffle(order, 42)
some = np.frombuffer(order, np.uint32)[:1000].astype(np.int64)
assert (index.places(some) == some * 20_000).all()
print(json.dumps([(peak() - before) * 2**20 / rows, peak()]))
"""


def measured(code: str) -> list[float]:
    """What a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", PEAK + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("dedup", [False, True])
def test_case_c024_memory_does_not_grow_with_the_number_of_sets(tmp_path: Path, dedup: bool) -> None:
    """Case C024, scaled down unless EYAS_LONG is set; one of the sets has 64-bit ids in Parquet."""
    generator = np.random.default_rng(0)
    count = 3000 if LONG else 250
    peaks = {}
    for sets in (6, 12):
        folder = tmp_path / f"in-{sets}"
        write_sets(folder, **{f"S{i}": random_rows(generator, count) for i in range(sets - 1)})
        write_parquet(folder / "last" / "tokenized_data.parquet", random_rows(generator, count))
        code = LIMITED.format(
            limit=3 << 29,
            helpers=str(Path(__file__).parent),
            out=str(tmp_path / f"{sets}"),
            sets=str(folder),
            dedup=dedup,
        )
        records, tokens, peaks[sets] = measured(code)
        assert (records, tokens) == (sets * count, sets * count * 1500)
    assert peaks[12] < peaks[6] + 20, f"twice the sets took {peaks[12]:.0f} MiB instead of {peaks[6]:.0f}"


def random_rows(generator: np.random.Generator, count: int) -> list[dict[str, list[int]]]:
    ids = generator.integers(0, 163_840, (count, 1500)).tolist()
    mask = generator.integers(0, 2, (count, 1500)).tolist()
    return [{"input_ids": ids[i], "loss_mask": mask[i]} for i in range(count)]


def write_parquet(file: Path, rows: list[dict[str, list[int]]]) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file.parent.mkdir(parents=True)
    kind = pyarrow.list_(pyarrow.int64())
    arrays = {key: pyarrow.array([row[key] for row in rows], kind) for key in ("input_ids", "loss_mask")}
    parquet.write_table(pyarrow.table(arrays), file)


def test_the_index_takes_twelve_bytes_a_row_with_its_order() -> None:
    """Eight for the lines and four for the order; 30 million rows under 500 MB in the long run."""
    rows = 30_000_000 if LONG else 2_000_000
    per_row, peak = measured(INDEX.format(rows=rows))
    assert per_row < 12 * 1.1 + 4e6 / rows, f"{per_row:.1f} bytes a row"
    assert peak < 500


def test_an_index_finds_lines_of_any_length_again() -> None:
    from eyas.merge.index import LineIndex
    from eyas.merge.inputs import TokenFile

    generator = np.random.default_rng(0)
    names = ["A", "A", "B"]
    index = LineIndex([TokenFile(name, str(i), Path("x"), Path("x"), "0", 0) for i, name in enumerate(names)])
    places, numbers, records = [], [], []
    record = 0
    for number, _ in enumerate(names):
        index.begin_file()
        place = line = 0
        record = 0 if number == 2 else record
        for count in (0, 1, 127, 128, 129, 1000, 3):
            lengths = generator.choice([1, 2, 100, 2**31, 2**32 - 1], count).astype(np.uint32)
            blank = generator.random(count) < 0.1
            index.add(lengths, np.ones(count, np.uint32), blank)
            for length, is_blank in zip(lengths.tolist(), blank.tolist(), strict=True):
                line += 1
                places.append(place)
                numbers.append(line)
                records.append(record)
                place += length
                record += not is_blank
    lines = np.arange(len(index))
    assert index.places(lines).tolist() == places
    assert index.line_numbers(lines).tolist() == numbers
    assert index.record_numbers(lines).tolist() == records
    assert index.datasets == {"A": (0, 2 * 1388), "B": (2 * 1388, 3 * 1388)}


@pytest.mark.parametrize("width", [1, 2])
def test_repeats_are_found_class_by_class(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from eyas.merge import repeats as module

    monkeypatch.setattr(module, "_AT_ONCE", 50)
    generator = np.random.default_rng(width)
    keys = generator.integers(0, 200, (1000, width)).astype(np.uint64)
    if width == 2:
        keys[:, 1] //= 60
    seen: dict[bytes, int] = {}
    expected = {}
    for line, key in enumerate(keys):
        if key.any():
            seen[key.tobytes()] = seen.get(key.tobytes(), 0) + 1
            if seen[key.tobytes()] > 1:
                expected[line] = seen[key.tobytes()]
    runs = lambda: ((at, keys[at : at + 90]) for at in range(0, 1000, 90))  # noqa: E731
    got = {}
    for lines, times in repeats(runs, 1000):
        got.update(zip(lines.tolist(), times.tolist(), strict=True))
    assert got == expected
