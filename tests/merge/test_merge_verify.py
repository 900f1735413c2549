"""Every tampering is found although the digests in the manifest are made right again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eyas.core.digest import read_digest
from eyas.merge import rowsidx
from eyas.merge.uniform import uniformity
from eyas.merge.verify import verify
from token_sets import merge, read, rows, write_sets


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    sets = write_sets(tmp_path / "in", A=[*rows(1, 60), b"broken"], B=rows(2, 80), H=rows(3, 9))
    merge(tmp_path / "out", sets, heldout=("H",), dev_fraction=0.2, max_seq_len=30, sample={"B": 0.9})
    return tmp_path / "out"


def set_digests_right(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for output in manifest["outputs"]:
        file = folder / output["file"]
        output.update(bytes=file.stat().st_size, digest=read_digest(file))
    path.write_text(json.dumps(manifest))


def change_row(
    folder: Path, number: int, change: Callable[[dict[str, Any]], object], split: str = "train"
) -> None:
    lines = read(folder / f"{split}.jsonl")
    change(lines[number])
    write_lines(folder, split, lines)


def write_lines(folder: Path, split: str, lines: list[dict[str, Any]]) -> None:
    texts = [json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines]
    (folder / f"{split}.jsonl").write_text("".join(texts))


def flip_mask(folder: Path) -> None:
    def flip(row: dict[str, Any]) -> None:
        row["loss_mask"][-1] ^= 1

    change_row(folder, 17, flip)


def swap_rows(folder: Path) -> None:
    lines = read(folder / "train.jsonl")
    lines[3], lines[40] = lines[40], lines[3]
    write_lines(folder, "train", lines)


def swap_rows_and_index(folder: Path) -> None:
    swap_rows(folder)
    index = rowsidx.read(folder)
    data = bytearray(index.path.read_bytes())
    one, other = (slice(index.start + 8 * i, index.start + 8 * i + 8) for i in (3, 40))
    data[one], data[other] = data[other], data[one]
    index.path.write_bytes(data)


def sort_rows(folder: Path) -> None:
    """Not shuffled at all, rows and index alike."""
    index = rowsidx.read(folder)
    places = np.concatenate(list(index.places("train")))
    order = np.lexsort((places[:, 1], places[:, 0]))
    lines = read(folder / "train.jsonl")
    write_lines(folder, "train", [lines[i] for i in order])
    data = bytearray(index.path.read_bytes())
    data[index.start : index.start + 8 * len(order)] = places[order].tobytes()
    index.path.write_bytes(data)


def truncate(folder: Path) -> None:
    path = folder / "train.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def tear(folder: Path) -> None:
    path = folder / "eval.jsonl"
    path.write_bytes(path.read_bytes()[:-20])


def repeat_row(folder: Path) -> None:
    lines = read(folder / "train.jsonl")
    write_lines(folder, "train", [*lines[:-1], lines[0]])


def say_other_options(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["options"]["dedup"] = True  # changes no row here
    path.write_text(json.dumps(manifest))


def say_other_totals(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["actual"]["datasets"][0]["tokens_kept"] += 1
    path.write_text(json.dumps(manifest))


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped mask bit": (flip_mask, "mask is not the first"),
    "another id": (lambda f: change_row(f, 5, lambda row: row["input_ids"].__setitem__(0, 1)), "ids are not"),
    "a true for a 1": (lambda f: change_row(f, 5, lambda row: row["loss_mask"].append(True)), "list of integers"),
    "a row cut short": (
        lambda f: change_row(f, 9, lambda row: (row["input_ids"].pop(), row["loss_mask"].pop()), "dev"),
        "ids are not the first",
    ),
    "another row id": (lambda f: change_row(f, 2, lambda row: row.update(id="A#0x")), "its id is"),
    "another dataset": (lambda f: change_row(f, 2, lambda row: row.update(dataset="C")), "its dataset is"),
    "a flag": (lambda f: change_row(f, 2, lambda row: row.update(flags=["greedy"])), "its flags is"),
    "a further key": (lambda f: change_row(f, 2, lambda row: row.update(x=1)), "keys that its source has not"),
    "swapped rows": (swap_rows, "train.jsonl: row 4: its id is"),
    "swapped rows, the index with them": (swap_rows_and_index, "row 4 of train is another"),
    "sorted rows, the index with them": (sort_rows, "not spread evenly"),
    "a truncated file": (truncate, "rows, the sources give"),
    "a torn file": (tear, "not JSON"),
    "a row twice": (repeat_row, "its id is"),
    "other totals": (say_other_totals, "tokens_kept differ"),
    "other options": (say_other_options, "fingerprint is not"),
    "a torn index": (lambda f: (f / "rows.idx").write_bytes((f / "rows.idx").read_bytes()[:-8]), "wrong length"),
}  # fmt: skip


def test_an_honest_corpus_is_proven(corpus: Path, tmp_path: Path) -> None:
    assert verify(corpus) == []
    (tmp_path / "in").rename(tmp_path / "moved")
    assert "say with --inputs" in verify(corpus)[0]
    assert verify(corpus, [tmp_path / "moved"]) == []


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_tampering_is_found_though_the_digests_are_right(corpus: Path, kind: str) -> None:
    tamper, expected = TAMPERINGS[kind]
    tamper(corpus)
    set_digests_right(corpus)
    faults = verify(corpus)
    assert any(expected in fault for fault in faults), f"{kind} was not found: {faults}"


def test_a_changed_source_is_told_from_a_changed_corpus(corpus: Path, tmp_path: Path) -> None:
    source = tmp_path / "in" / "A" / "tokenized_data.jsonl"
    source.write_bytes(source.read_bytes() + b"\n")
    assert ["has changed since the merge" in fault for fault in verify(corpus)] == [True]


@pytest.mark.parametrize(
    "options", [{"cut": "turn"}, {"dedup": True}, {"output_format": "parquet"}, {"cap": {"A": 9}}]
)
def test_every_kind_of_merge_can_be_proven(tmp_path: Path, options: dict[str, Any]) -> None:
    if "output_format" in options:
        pytest.importorskip("pyarrow")
    again = [{**row, "id": "same", "more": [1, {"x": 2}]} for row in rows(5, 9)]
    sets = write_sets(tmp_path / "in", A=[*rows(1, 30), *rows(1, 5)], B=again)
    merge(tmp_path / "out", sets, max_seq_len=12, min_kept=0, **options)
    assert verify(tmp_path / "out") == []


def test_the_test_of_uniformity_passes_shuffles_and_fails_order() -> None:
    generator = np.random.default_rng(0)
    chances = [uniformity(generator.permutation(1000)[:200], 1000) for _ in range(400)]
    assert 0.02 < np.mean(np.array(chances) < 0.05) < 0.09, "the p-value is not one"
    assert uniformity(np.arange(200), 1000) < 1e-10
    assert uniformity(np.array([3]), 1000) == 1.0
