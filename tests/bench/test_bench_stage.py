"""The bench stage on the toy target: its figures, its proofs, and the faults that it must find."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file

import toy_run
from eyas.bench import checks, worker
from eyas.bench import stage as bench_stage
from eyas.bench.options import BenchOptions
from eyas.core.artefact import Out
from eyas.core.errors import EyasError, FaultFound
from eyas.core.manifest import Manifest, Source, read_manifest
from eyas.core.rows import TokenRow
from eyas.drafter.network import Drafter

OPTIONS = BenchOptions(prompts=3, max_new_tokens=20, workers=1)


@pytest.fixture(scope="module")
def inputs(
    tmp_path_factory: pytest.TempPathFactory, target_folder: Path, good: Drafter, rows: list[TokenRow]
) -> dict[str, Source]:
    return toy_run.whole_run(tmp_path_factory.mktemp("run"), target_folder, good, rows)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Source]) -> tuple[Path, Manifest]:
    """A run with two worker processes."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    return folder, bench_stage.run(dataclasses.replace(OPTIONS, workers=2), inputs, Out(folder))


def test_the_report_has_every_figure_of_the_run_object(report: tuple[Path, Manifest]) -> None:
    actual = report[1].actual
    assert actual["decoded_prompts"] == 3
    assert actual["identical_outputs"] is True
    assert actual["greedy_differences"] == {"count": 0, "rows": []}
    assert set(actual["floors"]) == {"bigram", "prompt_lookup"}
    assert set(actual["accept_length_by_dataset"]) == {"set-0", "set-1"}
    for name in ("speedup", "round_cost", "acceptance_by_position", "accept_length_decoded"):
        assert set(actual[name]) == {"1", "2", "3"}
    assert actual["verdict"].endswith(".")


def test_the_measured_accept_length_is_the_walk_on_the_same_prompts(report: tuple[Path, Manifest]) -> None:
    actual = report[1].actual
    assert actual["decoded_accept_length"] == actual["decoded_walk"] > 1.2
    assert actual["accept_length_decoded"] == actual["walk_decoded"]
    for drafts in ("1", "2", "3"):
        assert actual["round_cost"][drafts] == pytest.approx(
            actual["accept_length_decoded"][drafts] / actual["speedup"][drafts]
        )
        assert 1 + sum(actual["acceptance_by_position"][drafts]) >= actual["accept_length_decoded"][drafts]


def test_results_hold_a_line_for_each_set_setting_and_prompt(report: tuple[Path, Manifest]) -> None:
    folder, manifest = report
    lines = [orjson.loads(line) for line in (folder / "results.jsonl").read_bytes().splitlines()]
    assert len(lines) == 12 == manifest.counts["rows_out"] == manifest.predicted["rows"]
    assert {line["setting"] for line in lines} == {"plain", "drafts=1", "drafts=2", "drafts=3"}
    for line in lines:
        assert line["cpu_s"] > line["draft_cpu_s"] >= 0
        assert sum(line["rounds"]) == (len(line["tokens"]) - 1 if line["draft_tokens"] else 0)


def test_a_finished_benchmark_is_reused(report: tuple[Path, Manifest], inputs: dict[str, Source]) -> None:
    folder, manifest = report
    assert bench_stage.run(OPTIONS, inputs, Out(folder)) == read_manifest(folder) == manifest


def test_decodings_that_were_done_before_a_stop_are_not_done_again(
    tmp_path: Path, inputs: dict[str, Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    do, done = worker.do, []

    def breaking(task: worker.Task) -> dict:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(task.unit)
        return do(task)

    monkeypatch.setattr(worker, "do", breaking)
    with pytest.raises(KeyboardInterrupt):
        bench_stage.run(OPTIONS, inputs, Out(tmp_path / "out"))
    first = list(done)
    done.append("room for the rest")
    bench_stage.run(OPTIONS, inputs, Out(tmp_path / "out"))
    assert len(done) == len(set(done)) == 13
    assert first == done[:5]


def spoil(inputs: dict[str, Source], folder: Path, name: str, change: object) -> dict[str, Source]:
    """The inputs with one tensor of the exported vLLM folder changed."""
    exported = inputs["export"].path
    for file in ("config.json", "model.safetensors"):
        (folder / "vllm").mkdir(parents=True, exist_ok=True)
        (folder / "vllm" / file).write_bytes((exported / "vllm" / file).read_bytes())
    state = load_file(folder / "vllm" / "model.safetensors")
    state[name] = change(state[name]).contiguous()
    save_file(state, folder / "vllm" / "model.safetensors")
    return {**inputs, "export": Source(folder, name)}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fc.weight", lambda t: torch.cat([t[:, 32:64], t[:, :32], t[:, 64:]], dim=1)),
        ("lm_head.weight", lambda t: t.roll(1, 0)),
        ("d2t", lambda t: t + 1),
        ("midlayer.hidden_norm.weight", torch.ones_like),
    ],
)
def test_an_export_that_is_not_the_trained_drafter_is_a_fault(
    tmp_path: Path, inputs: dict[str, Source], name: str, change: object
) -> None:
    spoiled = spoil(inputs, tmp_path / "export", name, change)
    with pytest.raises(FaultFound, match="the exported drafter is not the trained one"):
        bench_stage.run(OPTIONS, spoiled, Out(tmp_path / "out"))


@pytest.fixture
def altered(
    tmp_path: Path, target_folder: Path, good: Drafter, rows: list[TokenRow]
) -> tuple[dict[str, Source], str]:
    """Inputs whose first row says something that the target does not, and that row's id."""
    row = rows[0]
    at = len(row.input_ids) - row.num_labels + 6
    ids = [*row.input_ids[:at], (row.input_ids[at] + 1) % 90, *row.input_ids[at + 1 :]]
    wrong = dataclasses.replace(row, input_ids=ids)
    return toy_run.whole_run(tmp_path / "run", target_folder, good, [wrong, *rows[1:3]]), row.id


def test_a_row_that_is_not_the_greedy_text_is_a_fault_and_named(
    tmp_path: Path, altered: tuple[dict[str, Source], str]
) -> None:
    inputs, name = altered
    with pytest.raises(FaultFound, match="not the target's greedy text from token 6 on") as caught:
        bench_stage.run(OPTIONS, inputs, Out(tmp_path / "out"))
    assert caught.value.record == f"set-0/plain/{name}"


def test_a_near_tie_excuses_the_row_and_its_plain_text_is_walked(
    tmp_path: Path, altered: tuple[dict[str, Source], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "NEAR_TIE", float("inf"))
    inputs, name = altered
    actual = bench_stage.run(OPTIONS, inputs, Out(tmp_path / "out")).actual
    (difference,) = actual["greedy_differences"]["rows"]
    assert (difference["prompt"], difference["at"], difference["excused"]) == (name, 6, True)
    assert actual["accept_length_decoded"] == actual["walk_decoded"]
    assert actual["identical_outputs"] is True


def test_a_run_without_held_out_rows_says_what_to_add(
    tmp_path: Path, target_folder: Path, good: Drafter
) -> None:
    rows = [TokenRow("a", "toy", [7, 8, 9, 10], [0, 1, 1, 1], [])]
    merge = toy_run.write_merge(tmp_path / "merge", rows, [])
    extracted = toy_run.extract(tmp_path / "extract", merge, target_folder)
    train = toy_run.write_train(tmp_path / "train", good, extracted.path)
    exported = toy_run.export(tmp_path / "export", train, target_folder)
    inputs = {"merge": merge, "extract": extracted, "train": train, "export": exported}
    inputs["target"] = toy_run.target_source(target_folder)
    with pytest.raises(EyasError, match="no held-out rows") as caught:
        bench_stage.run(OPTIONS, inputs, Out(tmp_path / "out"))
    assert "role: heldout" in caught.value.mend


@pytest.mark.parametrize(
    "changes", [{"draft_tokens": ()}, {"draft_tokens": (0,)}, {"prompts": 0}, {"max_new_tokens": 1}]
)
def test_options_that_leave_nothing_to_measure_are_refused(
    tmp_path: Path, inputs: dict[str, Source], changes: dict
) -> None:
    with pytest.raises(EyasError):
        bench_stage.run(dataclasses.replace(OPTIONS, **changes), inputs, Out(tmp_path / "out"))
