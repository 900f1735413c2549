from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.core.errors import EyasError
from eyas.core.rows import RowIds, lot
from eyas.merge import scan
from eyas.merge import write as second_pass
from eyas.merge.arrange import shuffle
from token_sets import content, entry, make_corpus, merge, read, row, rows, write, write_sets


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return write_sets(tmp_path / "in", A=rows(1, 30), B=rows(2, 50), C=rows(3, 20))


def test_the_order_is_that_of_the_standard_library(tmp_path: Path, sets: Path) -> None:
    merge(tmp_path / "out", sets, seed=7)
    expected = [(name, i) for name in "ABC" for i, _ in enumerate(read(sets / name / "tokenized_data.jsonl"))]
    random.Random(7).shuffle(expected)
    assert [row["id"] for row in read(tmp_path / "out" / "train.jsonl")] == [
        f"{name}#{i}" for name, i in expected
    ]


@given(st.integers(0, 300), st.integers(0, 2**40))
def test_rows_are_shuffled_as_any_list_is(count: int, seed: int) -> None:
    from array import array

    lines = array("I", range(count))
    shuffle(lines, seed)
    plain = list(range(count))
    random.Random(seed).shuffle(plain)
    assert lines.tolist() == plain


def test_every_row_comes_out_once_and_whole(tmp_path: Path, sets: Path) -> None:
    merge(tmp_path / "out", sets)
    out = {row["id"]: row for row in read(tmp_path / "out" / "train.jsonl")}
    for name in "ABC":
        for i, source in enumerate(read(sets / name / "tokenized_data.jsonl")):
            got = out.pop(f"{name}#{i}")
            assert got == {"id": f"{name}#{i}", "dataset": name, **source, "flags": []}
    assert not out


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 200), st.integers(60, 2000), st.integers(1, 500), st.booleans())
def test_bytes_do_not_depend_on_workers_chunks_or_the_order_of_inputs(
    tmp_path_factory: pytest.TempPathFactory, segment: int, block: int, batch: int, has_workers: bool
) -> None:
    folder = tmp_path_factory.mktemp("same")
    sets = write_sets(folder / "in", A=rows(1, 9), B=[*rows(2, 9), b"", b"broken"], C=rows(3, 4))
    sets_too = write_sets(folder / "more", D=rows(4, 5), A=rows(5, 3))
    options: dict[str, Any] = {"dedup": True, "dev_fraction": 0.2, "sample": {"B": 0.8}, "heldout": ("C",)}
    merge(folder / "plain", sets, sets_too, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "SEGMENT", segment)
        patch.setattr(scan, "BLOCK", block)
        patch.setattr(second_pass, "BATCH_BYTES", batch)
        scan._block.cache_clear()
        merge(folder / "other", sets_too, sets, workers=2 if has_workers else 1, **options)
    scan._block.cache_clear()
    assert content(folder / "plain") == content(folder / "other")


def test_a_corpus_that_lies_elsewhere_is_the_same_corpus(tmp_path: Path, sets: Path) -> None:
    first = merge(tmp_path / "one", sets)
    sets.rename(tmp_path / "moved")
    second = merge(tmp_path / "two", tmp_path / "moved")
    assert first.fingerprint == second.fingerprint
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_the_bytes_of_version_1_have_not_changed(tmp_path: Path) -> None:
    """If this fails, other corpora come out of the same inputs: raise merge's VERSION."""
    write_sets(tmp_path / "in", A=[*rows(1, 20), b"broken"], B=rows(2, 9), C=rows(3, 9))
    manifest = merge(
        tmp_path / "out", tmp_path / "in", max_seq_len=24, cut="turn", dedup=True, sample={"A": 0.9}, cap={"B": 7},
        heldout=("C",), dev_fraction=0.2,
    )  # fmt: skip
    assert {output.file: output.digest for output in manifest.outputs} == GOLDEN


GOLDEN = {
    "dev.jsonl": "ad693979ed8e46912c1dfa40953b5ccb",
    "eval.jsonl": "ba5a5bec87f2768234afecbd71553a65",
    "rows.idx": "f66e4ffcce3acba2eccfeee7b1a46b67",
    "train.jsonl": "b1ef639f967357f48f20216aba2d48e6",
}


def test_all_hostile_kinds_are_counted_as_the_corpus_maker_counts_them(tmp_path: Path) -> None:
    for style in (["--style", "mixed", "--extra"], ["--style", "spaced"], ["--style", "compact"]):
        folder = tmp_path / style[1]
        truth = make_corpus(folder, "--scale", "0.02", "--dirty", "--dirty-rate", "0.03", *style)
        kinds = {kind for dataset in truth.values() for kind in dataset["hostile"]}
        assert len(kinds) == 26, "the corpus maker left out a kind"
        manifest = merge(tmp_path / f"out-{style[1]}", folder, exclude=("A1",))
        for name, right in truth.items():
            if name == "A1":
                continue
            got = entry(manifest, name)
            assert got["records_in"] == right["records"], name
            assert got["records_kept"] == right["valid_records"], f"{name}: {got['dropped']}"
            assert got["tokens_kept"] == right["tokens_8192"], name
            assert got["trainable_tokens"] == right["trainable_8192"], name
        for reason, places in manifest.actual["examples"].items():
            for place in places:
                lines = (folder / place["dataset"] / place["file"]).read_bytes().split(b"\n")
                assert lines[place["line"] - 1].strip(), f"{reason} points at an empty line"


def test_an_excluded_dataset_is_listed_with_its_bytes_and_never_read(tmp_path: Path, sets: Path) -> None:
    hidden = sets / "B" / "tokenized_data.jsonl"
    size = hidden.stat().st_size
    with open(hidden, "wb") as file:
        file.truncate(size)  # a hole: no JSON at all
    manifest = merge(tmp_path / "out", sets, exclude=("B",))
    assert manifest.actual["excluded"] == [{"name": "B", "bytes": size}]
    assert {row["dataset"] for row in read(tmp_path / "out" / "train.jsonl")} == {"A", "C"}


@pytest.mark.parametrize("option", ["exclude", "heldout", "cap", "cap_tokens", "sample"])
def test_a_name_that_is_not_there_is_an_error_that_lists_the_names(
    tmp_path: Path, sets: Path, option: str
) -> None:
    value = ("D",) if option in ("exclude", "heldout") else {"D": 1}
    with pytest.raises(EyasError) as error:
        merge(tmp_path / "out", sets, **{option: value})
    assert "A, B, C" in str(error.value)
    assert "D" in str(error.value)
    assert not (tmp_path / "out" / "train.jsonl").exists()


def test_samples_and_caps_keep_the_rows_of_the_lowest_lots(tmp_path: Path, sets: Path) -> None:
    manifest = merge(tmp_path / "out", sets, seed=3, sample={"A": 0.5}, cap={"B": 12}, cap_tokens={"C": 150})
    out = read(tmp_path / "out" / "train.jsonl")
    lots = {name: sorted((lot(3, name, str(i + 1)), f"{name}#{i}") for i in range(50)) for name in "AB"}
    kept = {name: {row["id"] for row in out if row["dataset"] == name} for name in "ABC"}
    assert kept["A"] == {name for drawn, name in lots["A"] if drawn < 2**63 and int(name[2:]) < 30}
    assert kept["B"] == {name for _, name in lots["B"][:12]}
    tokens = sum(len(row["input_ids"]) for row in out if row["dataset"] == "C")
    assert 110 < tokens <= 150
    assert entry(manifest, "B")["dropped"] == {"over_cap": 38}
    assert (
        entry(manifest, "C")["dropped_tokens"]["over_cap_tokens"] + tokens
        == entry(manifest, "C")["tokens_in"]
    )


def test_a_choice_does_not_depend_on_the_other_datasets(tmp_path: Path, sets: Path) -> None:
    merge(tmp_path / "all", sets, sample={"A": 0.5}, cap={"B": 9})
    merge(tmp_path / "two", sets, sample={"A": 0.5}, cap={"B": 9}, exclude=("C",))
    both = [{row["id"] for row in read(tmp_path / out / "train.jsonl")} for out in ("all", "two")]
    assert {name for name in both[0] if name[0] != "C"} == both[1]


def test_duplicates_are_found_after_the_cut_and_the_first_stays(tmp_path: Path) -> None:
    one = {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 1]}
    longer = {"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 1, 1, 1, 0, 1]}
    other_mask = {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 0]}
    write_sets(tmp_path / "in", A=[longer, other_mask], B=[one, {**one, "id": "x"}])
    manifest = merge(tmp_path / "out", tmp_path / "in", dedup=True, max_seq_len=4, min_kept=0)
    assert sorted(row["id"] for row in read(tmp_path / "out" / "train.jsonl")) == ["A#0", "A#1"]
    assert entry(manifest, "B")["dropped"] == {"duplicate": 2}


def test_held_out_rows_stay_apart_sorted_by_dataset_and_id(tmp_path: Path) -> None:
    generator = random.Random(0)
    sets = write_sets(
        tmp_path / "in", A=rows(1, 9), H=[row(generator, 5, id=f"h{i}") for i in (3, 10, 1)], G=rows(2, 12)
    )
    merge(tmp_path / "out", sets, heldout=("H", "G"), dev_fraction=0.5)
    held = [(row["dataset"], row["id"]) for row in read(tmp_path / "out" / "eval.jsonl")]
    assert held == sorted(held)
    assert len(held) == 15
    assert {row["dataset"] for row in read(tmp_path / "out" / "train.jsonl")} == {"A"}


def test_no_conversation_is_in_both_training_and_development(tmp_path: Path) -> None:
    generator = random.Random(0)
    same = [row(generator, 9, id=f"talk-{i % 40}") for i in range(160)]
    sets = write_sets(tmp_path / "in", A=same, B=rows(4, 100))
    manifest = merge(tmp_path / "out", sets, dev_fraction=0.3)
    train, dev = (read(tmp_path / "out" / f"{split}.jsonl") for split in ("train", "dev"))
    names = [{row["id"].split("~")[0] for row in part} for part in (train, dev)]
    assert not names[0] & names[1]
    assert len(train) + len(dev) == 260
    assert 40 < len(dev) < 120
    assert manifest.output("dev.jsonl").rows == len(dev)
    assert manifest.output("train.jsonl").tokens == sum(len(row["input_ids"]) for row in train)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from([None, "a", "a~2", "a~3", "A#0", "A#3", "A#3~2", "b", 7, "7", "ü"]),
        min_size=1,
        max_size=12,
    )
)
def test_ids_become_unique_as_everywhere_in_eyas(
    tmp_path_factory: pytest.TempPathFactory, given_ids: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    generator = random.Random(0)
    given_rows = [row(generator, 5, **({} if name is None else {"id": name})) for name in given_ids]
    merge(folder / "out", write_sets(folder / "in", A=given_rows))
    got = {tuple(row["input_ids"]): row["id"] for row in read(folder / "out" / "train.jsonl")}
    names = RowIds("A")
    assert [got[tuple(row["input_ids"])] for row in given_rows] == [names.name(name) for name in given_ids]


def test_a_broken_dataset_fails_the_merge_with_examples(tmp_path: Path) -> None:
    bad = [{**good, "input_ids": [*good["input_ids"], "x"]} for good in rows(1, 12)]
    sets = write_sets(tmp_path / "in", A=rows(2, 30), B=[*bad, *rows(3, 4)])
    with pytest.raises(EyasError) as error:
        merge(tmp_path / "out", sets)
    assert "dataset B: 4 of 16 rows were kept" in str(error.value)
    assert "tokenized_data.jsonl:1 " in str(error.value)
    assert merge(tmp_path / "out", sets, min_kept=0.2).actual["records_kept"] == 34


def test_a_dataset_without_a_column_is_refused_by_name_before_any_work(tmp_path: Path) -> None:
    sets = write_sets(tmp_path / "in", A=rows(2, 30), B=[{"input_ids": [1, 2]}] * 5)
    with pytest.raises(EyasError, match="dataset B has no column loss_mask"):
        merge(tmp_path / "out", sets)


def test_ids_outside_the_tokenizer_are_dropped(tmp_path: Path) -> None:
    from eyas.core.artefact import Out
    from eyas.merge.inputs import TOKENIZER, plain_inputs, tokenizer_source
    from eyas.merge.options import MergeOptions
    from eyas.merge.stage import run

    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<end>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    good, bad = {"input_ids": [0, 2], "loss_mask": [0, 1]}, {"input_ids": [0, 3], "loss_mask": [0, 1]}
    sets = write_sets(tmp_path / "in", A=[good, bad, good])
    inputs = {**plain_inputs([sets]), TOKENIZER: tokenizer_source(tmp_path)}
    manifest = run(MergeOptions(), inputs, Out(tmp_path / "out"))
    assert manifest.actual["dropped"] == {"outside_vocabulary": 1}
    assert manifest.actual["vocab_size"] == 3


def test_a_finished_corpus_is_reused_and_another_is_refused(tmp_path: Path, sets: Path) -> None:
    first = merge(tmp_path / "out", sets)
    assert merge(tmp_path / "out", sets).run == first.run
    with pytest.raises(EyasError, match="--overwrite"):
        merge(tmp_path / "out", sets, seed=1)
    assert merge(tmp_path / "out", sets, seed=1, overwrite=True).options["seed"] == 1


def test_a_setting_without_effect_is_reported(tmp_path: Path, sets: Path) -> None:
    manifest = merge(tmp_path / "out", sets, cap={"A": 1000})
    assert manifest.actual["notes"] == ["--cap A=1000 had no effect: nothing was left out by it"]


def test_the_inputs_are_not_written_to(tmp_path: Path, sets: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sets.rglob("*.jsonl")}
    merge(tmp_path / "out", sets, dedup=True)
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sets.rglob("*") if path.is_file()
    } == before


def test_long_lines_and_files_without_lines_are_read(tmp_path: Path) -> None:
    long = {"input_ids": list(range(300_000)), "loss_mask": [1] * 300_000, "id": "long"}
    write(tmp_path / "in" / "A" / "tokenized_data.jsonl", [*rows(1, 3), long, *rows(2, 3)])
    write(tmp_path / "in" / "B" / "tokenized_data.jsonl", [])
    write(tmp_path / "in" / "C" / "tokenized_data.jsonl", [b"", b"  "])
    manifest = merge(tmp_path / "out", tmp_path / "in")
    assert [entry(manifest, name)["records_in"] for name in "ABC"] == [7, 0, 0]
    (cut,) = [row for row in read(tmp_path / "out" / "train.jsonl") if row["id"] == "long"]
    assert cut["input_ids"] == list(range(8192))
    assert cut["flags"] == ["cut"]
