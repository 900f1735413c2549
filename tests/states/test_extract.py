from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas.core.artefact import Out, open_workbench
from eyas.core.contract import target_source
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, Source, artefact_source, measured
from eyas.core.rows import EXACT, GREEDY, TokenRow
from eyas.engines.hf import HfTarget
from eyas.states import shards
from eyas.states.options import ExtractOptions
from eyas.states.shards import _batches, plan_shards
from eyas.states.stage import run
from eyas.states.store import StateStore


def corpus(folder: Path, train: list[TokenRow], held: list[TokenRow]) -> Source:
    with open_workbench("merge", 1, None, {}, Out(folder)) as work:
        if not isinstance(work, Manifest):
            for name, rows in (("train", train), ("eval", held), ("dev", [])):
                write_whole(folder / f"{name}.jsonl", b"".join(row.line() for row in rows))
            files = [measured(folder, f"{name}.jsonl") for name in ("train", "eval", "dev")]
            work.publish(files, Counts(1, 1), {})
    return artefact_source(folder, "merge")


def row(name: str, length: int, flags: list[str] | None = None, dataset: str = "d") -> TokenRow:
    ids = torch.randint(
        0, 250, (length,), generator=torch.Generator().manual_seed(len(name) * 1000 + length)
    ).tolist()
    return TokenRow(name, dataset, ids, [0] * (length // 2) + [1] * (length - length // 2), flags or [])


ROWS = [row(f"r{n}", n) for n in (9, 30, 3, 30, 17, 2, 61, 12)]


def extract(
    folder: Path, target: Path, rows: list[TokenRow], held: list[TokenRow], **options: object
) -> StateStore:
    inputs = {"merge": corpus(folder / "merge", rows, held), "target": target_source(target)}
    run(ExtractOptions(workers=1, **options), inputs, Out(folder / "out"))
    return StateStore(folder / "out")


def test_states_are_those_of_the_row_alone_whatever_the_batch(tmp_path: Path, tiny_target: Path) -> None:
    """A row's states must not depend on its neighbours: rows mixed up in a batch keep every shape."""
    store = extract(tmp_path, tiny_target, ROWS, ROWS[:1], codec="float32", batch_tokens=128, shard_tokens=60)
    target = HfTarget(tiny_target)
    assert [store[i].id for i in range(len(store))] == [r.id for r in ROWS]
    for i, one in enumerate(ROWS):
        aux, last = target.states([one.input_ids], store.boundaries)[0]
        torch.testing.assert_close(store[i].aux_TAH, aux, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(store[i].last_TH, last, rtol=1e-4, atol=1e-4)


def test_held_out_states_keep_the_compute_type_whatever_the_codec(tmp_path: Path, tiny_target: Path) -> None:
    extract(tmp_path, tiny_target, ROWS, ROWS[:2], codec="bfloat16")
    held, train = StateStore(tmp_path / "out", "eval"), StateStore(tmp_path / "out", "train")
    aux, _ = HfTarget(tiny_target).states([r.input_ids for r in ROWS[:2]], held.boundaries)[0]
    assert torch.equal(held[0].aux_TAH, aux), "the walk would not equal real decoding on rounded states"
    assert not torch.equal(train[0].aux_TAH, aux)


def test_the_teacher_is_the_label_for_own_greedy_text_and_the_heads_argmax_otherwise(
    tmp_path: Path, tiny_target: Path
) -> None:
    own, other = row("own", 12, [EXACT, GREEDY]), row("other", 12)
    store = extract(tmp_path, tiny_target, [own, other], [own])
    target = HfTarget(tiny_target)
    assert store[0].teacher_T.tolist() == [-1] * 5 + own.input_ids[6:] + [-1]
    last = target.states([other.input_ids], [2])[0][1]
    expected = target.head(last).argmax(-1)
    assert store[1].teacher_T.tolist() == [-1] * 5 + expected[5:11].tolist() + [-1]


def test_two_runs_give_the_same_bytes(tmp_path: Path, tiny_target: Path) -> None:
    for name in ("a", "b"):
        extract(tmp_path / name, tiny_target, ROWS, ROWS[:1], shard_tokens=60)
    files = sorted(p.name for p in (tmp_path / "a" / "out").glob("*.safetensors"))
    assert len(files) > 2
    for name in files:
        assert (tmp_path / "a" / "out" / name).read_bytes() == (tmp_path / "b" / "out" / name).read_bytes()


def test_a_shard_that_was_spoiled_after_a_stop_is_made_again_and_the_others_are_kept(
    tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"merge": corpus(tmp_path / "merge", ROWS, ROWS[:1]), "target": target_source(tiny_target)}
    options = ExtractOptions(workers=1, shard_tokens=60)
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr("eyas.states.stage._publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run(options, inputs, Out(tmp_path / "out"))
    spoiled = tmp_path / "out" / "states-00001.safetensors"
    whole = spoiled.read_bytes()
    spoiled.write_bytes(whole[:-100] + b"\0" * 100)  # full length, zeroed tail
    made = []
    real = shards.extract_shard
    monkeypatch.setattr(
        "eyas.states.shards.extract_shard", lambda task: (made.append(task[0].unit), real(task))
    )
    run(options, inputs, Out(tmp_path / "out"))
    assert made == ["states-00001"], "exactly the spoiled shard is to be redone"
    assert spoiled.read_bytes() == whole


def test_states_that_do_not_fit_on_the_disk_are_refused_before_a_model_is_loaded(
    tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("eyas.states.stage.shutil.disk_usage", lambda _: usage)
    monkeypatch.setattr("eyas.states.shards.load_target", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(EyasError, match="will not fit"):
        extract(tmp_path, tiny_target, ROWS, ROWS[:1])


def test_predicted_bytes_are_within_a_percent_of_the_real_ones(tmp_path: Path, tiny_target: Path) -> None:
    manifest = extract(tmp_path, tiny_target, ROWS * 20, ROWS[:1]).manifest
    assert abs(manifest.predicted["bytes"] / manifest.actual["bytes"] - 1) < 0.06


@pytest.mark.parametrize("boundaries", [(), (3, 2), (2, 2), (-1, 2), (2, 9)])
def test_boundaries_that_do_not_fit_the_target_are_refused(
    tmp_path: Path, tiny_target: Path, boundaries: tuple[int, ...]
) -> None:
    with pytest.raises(EyasError, match="boundaries"):
        extract(tmp_path, tiny_target, ROWS, ROWS[:1], boundaries=boundaries)


def test_a_batch_never_exceeds_its_budget_and_every_row_is_in_one() -> None:
    lengths = [9, 100, 3, 30, 30, 300, 2, 61]
    batches = _batches(lengths, 128)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(b) == 1 or len(b) * max(lengths[i] for i in b) <= 128 for b in batches)


def test_shards_hold_all_rows_in_corpus_order(tmp_path: Path) -> None:
    source = corpus(tmp_path / "merge", ROWS, [])
    planned = plan_shards(source.path / "train.jsonl", "train", ExtractOptions(shard_tokens=40), (2,), [])
    assert sum(s.lines for s in planned) == len(ROWS)
    assert sum(s.tokens for s in planned) == sum(len(r.input_ids) for r in ROWS)
    assert all(s.tokens >= 40 for s in planned[:-1])
