from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, measured
from eyas.merge.inputs import plain_inputs
from eyas.merge.parquet import mask_runs, parse_ids
from token_sets import entry, merge, read, rows, write, write_sets


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return write_sets(tmp_path / "in", A=rows(1, 30), B=rows(2, 50))


def train(folder: Path) -> list[dict[str, Any]]:
    return read(folder / "train.jsonl")


def test_roles_follow_from_names_and_content_alone(tmp_path: Path, sets: Path) -> None:
    more = write_sets(tmp_path / "more", A=rows(7, 3))
    bare = write(tmp_path / "bare.jsonl", rows(8, 3))
    inputs = plain_inputs([sets, more, bare])
    assert sorted(inputs) == [
        "A/tokenized_data.jsonl", "A/tokenized_data.jsonl~2", "B/tokenized_data.jsonl", "bare/bare.jsonl",
    ]  # fmt: skip
    again = plain_inputs([bare, more, sets])
    assert {role: source.fingerprint for role, source in again.items()} == {
        role: source.fingerprint for role, source in inputs.items()
    }


def test_one_dataset_in_two_places_is_one_dataset(tmp_path: Path, sets: Path) -> None:
    more = write_sets(tmp_path / "more", A=rows(7, 3))
    manifest = merge(tmp_path / "out", sets, more)
    assert entry(manifest, "A")["records_kept"] == 33
    names = [row["id"] for row in train(tmp_path / "out") if row["dataset"] == "A"]
    assert sorted(names) == sorted(f"A#{i}" for i in range(33))


@pytest.mark.parametrize("ending", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_packed_files_give_the_rows_that_plain_files_give(tmp_path: Path, sets: Path, ending: str) -> None:
    merge(tmp_path / "plain", sets)
    for name in "AB":
        plain = sets / name / "tokenized_data.jsonl"
        pack(plain, tmp_path / "packed" / name / f"tokenized_data{ending}")
    manifest = merge(tmp_path / "out", tmp_path / "packed")
    assert train(tmp_path / "out") == train(tmp_path / "plain")
    assert not (tmp_path / "out" / "parts").exists()
    assert manifest.predicted["rows"] == 80


def pack(plain: Path, packed: Path) -> None:
    packed.parent.mkdir(parents=True, exist_ok=True)
    if packed.name.endswith(".gz"):
        packed.write_bytes(gzip.compress(plain.read_bytes()))
    elif packed.name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard")
        packed.write_bytes(zstandard.compress(plain.read_bytes()))
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        kind = pyarrow.int64() if "A" in str(packed.parent.name) else pyarrow.int32()
        columns = {key: [row[key] for row in read(plain)] for key in ("input_ids", "loss_mask")}
        arrays = {
            "input_ids": pyarrow.array(columns["input_ids"], pyarrow.list_(kind)),
            "loss_mask": pyarrow.array(columns["loss_mask"], pyarrow.large_list(pyarrow.int8())),
        }
        parquet.write_table(pyarrow.table(arrays), packed)


def test_a_parquet_set_without_a_column_is_refused_by_name(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "A" / "tokenized_data.parquet"
    file.parent.mkdir()
    parquet.write_table(pyarrow.table({"input_ids": [[1, 2]]}), file)
    with pytest.raises(EyasError, match="no column loss_mask"):
        merge(tmp_path / "out", file)


def test_a_damaged_archive_is_a_clear_error(tmp_path: Path, sets: Path) -> None:
    whole = gzip.compress((sets / "A" / "tokenized_data.jsonl").read_bytes())
    file = tmp_path / "A.jsonl.gz"
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EyasError, match="cannot be unpacked"):
        merge(tmp_path / "out", file)
    assert not (tmp_path / "out").exists()


def test_parquet_output_holds_the_same_rows(tmp_path: Path, sets: Path) -> None:
    pytest.importorskip("pyarrow")
    extra = [
        {**row, "id": f"x{i % 5}", "more": {"n": i}, "flags": ["greedy"]} for i, row in enumerate(rows(5, 12))
    ]
    write(sets / "C" / "tokenized_data.jsonl", extra)
    options: dict[str, Any] = {"heldout": ("B",), "max_seq_len": 20}
    merge(tmp_path / "lines", sets, **options)
    manifest = merge(tmp_path / "packed", sets, output_format="parquet", **options)
    assert manifest.output("eval.parquet").rows == 50
    for split in ("train", "eval"):
        from eyas.merge.unpack import parquet_lines

        packed = [json.loads(line) for line in parquet_lines(tmp_path / "packed" / f"{split}.parquet")]
        assert packed == read(tmp_path / "lines" / f"{split}.jsonl")


def test_ids_are_parsed_whatever_their_length_and_spacing() -> None:
    generator = np.random.default_rng(0)
    for top in (1, 9, 10, 99, 100, 9_999, 10_000, 99_999, 163_840, 99_999_999, 100_000_000, 2**31 - 1):
        values = [int(value) for value in generator.integers(0, top, 200, endpoint=True)] + [0, top]
        for separator in (",", ", "):
            texts = [separator.join(map(str, values[i : i + 7])).encode() for i in range(0, len(values), 7)]
            assert parse_ids(texts).tolist() == values


@pytest.mark.parametrize(
    ("mask", "runs"), [([0], [1]), ([1], [0, 1]), ([1, 1, 0, 1], [0, 2, 1, 1]), ([0, 1, 1], [1, 2])]
)
def test_a_mask_becomes_runs_that_begin_with_zeros(mask: list[int], runs: list[int]) -> None:
    for separator in (",", ", "):
        assert mask_runs(separator.join(map(str, mask)).encode()).tolist() == runs


def test_an_artefact_of_tokenize_is_merged_by_its_fingerprint(tmp_path: Path) -> None:
    folder = write_sets(tmp_path / "tokenize", A=rows(1, 8), B=rows(2, 5))
    outputs = [
        measured(folder, f"{name}/tokenized_data.jsonl", count, 100) for name, count in (("A", 8), ("B", 5))
    ]
    Manifest("tokenize", 1, "t", "f" * 32, {}, {}, outputs, Counts(13, 13).plain(), {}, {}).write(folder)
    assert {role: source.fingerprint for role, source in plain_inputs([folder]).items()} == {
        "tokenize": "f" * 32
    }
    manifest = merge(tmp_path / "out", folder)
    assert manifest.inputs == {"tokenize": "f" * 32}
    assert manifest.predicted["from"].startswith("upstream manifests")
    assert manifest.predicted["records_in"] == manifest.actual["records_in"] == 13


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "does not exist"),
        (lambda folder: write(folder / "rows.txt", []), "no known form"),
        (lambda folder: folder, "holds no token rows"),
    ],
)
def test_what_is_no_token_set_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(EyasError, match=message):
        plain_inputs([make(tmp_path)])


def test_an_input_given_twice_is_refused(tmp_path: Path, sets: Path) -> None:
    with pytest.raises(EyasError, match="given twice"):
        plain_inputs([sets, sets / "A" / "tokenized_data.jsonl"])


def test_a_dataset_in_two_forms_is_refused(tmp_path: Path, sets: Path) -> None:
    pack(sets / "A" / "tokenized_data.jsonl", sets / "A" / "tokenized_data.jsonl.gz")
    with pytest.raises(EyasError, match="more than one form"):
        plain_inputs([sets])
