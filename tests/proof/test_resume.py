"""A broken run ends where an unbroken one does, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.core.artefact import PARTS, Out
from eyas.core.errors import StoppedEarly
from eyas.core.manifest import Source, spoiled
from eyas.drafter import stage, trainer
from eyas.drafter.options import TrainOptions
from tiny import train_inputs

CASES = Path(__file__).parents[1] / "cases" / "inputs"
OPTIONS = TrainOptions(
    ttt_steps=2,
    epochs=2,
    tokens_per_step=22,
    warmup_steps=3,
    threads=1,
    checkpoint_seconds=1e9,
    init="target",
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    return train_inputs(tmp_path_factory.mktemp("inputs"), num_rows=20)


@pytest.fixture(scope="module")
def unbroken(inputs: dict[str, Source], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    stage.run(OPTIONS, inputs, Out(folder))
    return folder


class Killed(BaseException):
    pass


def run_with_stops(inputs: dict[str, Source], folder: Path, options: TrainOptions, stops: list[int]) -> None:
    """Run, dying right after each of these steps (a checkpoint behind it, or several steps back), then to the end."""
    step = trainer.Trainer._step
    for stop in stops:

        def dying(self: trainer.Trainer, *args: object, stop: int = stop) -> dict:
            if self.position.step == stop:
                raise Killed
            return step(self, *args)

        trainer.Trainer._step = dying
        try:
            with pytest.raises(Killed):
                stage.run(options, inputs, Out(folder))
        finally:
            trainer.Trainer._step = step
        assert (folder / PARTS).is_dir()
    stage.run(options, inputs, Out(folder))


def content_files(folder: Path) -> set[str]:
    """Everything but the manifest, whose `run` differs, and the curves."""
    names = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return {name for name in names if name != "manifest.json" and not name.startswith("tensorboard")}


def assert_equal_artefacts(found: Path, expected: Path) -> None:
    names = content_files(expected)
    assert content_files(found) == names
    for name in names:
        assert (found / name).read_bytes() == (expected / name).read_bytes(), (
            f"{name} depends on the interruption"
        )
    found_manifest, expected_manifest = (
        json.loads((p / "manifest.json").read_text()) for p in (found, expected)
    )
    for key in expected_manifest:
        if key != "run":
            assert found_manifest[key] == expected_manifest[key], key


@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_stops_anywhere_change_nothing(
    inputs: dict[str, Source], unbroken: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    steps = json.loads((unbroken / "manifest.json").read_text())["actual"]["steps"]
    stops = sorted(data.draw(st.lists(st.integers(1, steps - 1), min_size=1, max_size=3, unique=True)))
    every = data.draw(st.integers(1, 4))
    folder = tmp_path_factory.mktemp("broken") / "run"
    run_with_stops(inputs, folder, dataclasses.replace(OPTIONS, checkpoint_steps=every), stops)
    assert_equal_artefacts(folder, unbroken)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens_per_forward": 9},
        {"optimizer": "muon"},
        {"train_head": True, "init": "random"},
        {"precision": "bfloat16"},
    ],
    ids=str,
)
def test_stops_change_nothing_whatever_is_trained_how(
    inputs: dict[str, Source], tmp_path: Path, changes: dict[str, object]
) -> None:
    options = dataclasses.replace(OPTIONS, **changes)
    stage.run(options, inputs, Out(tmp_path / "whole"))
    run_with_stops(inputs, tmp_path / "broken", dataclasses.replace(options, checkpoint_steps=2), [3, 8, 9])
    assert_equal_artefacts(tmp_path / "broken", tmp_path / "whole")


def test_a_stop_at_an_epochs_end_and_again_right_after_it_changes_nothing(
    inputs: dict[str, Source], unbroken: Path, tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in (unbroken / "log.jsonl").read_text().splitlines()]
    first_of_second = next(line["step"] for line in lines if line["epoch"] == 1)
    options = dataclasses.replace(OPTIONS, checkpoint_steps=1)
    stops = [first_of_second, first_of_second + 1]
    run_with_stops(inputs, tmp_path / "run", options, stops)
    assert_equal_artefacts(tmp_path / "run", unbroken)


def test_the_best_checkpoint_survives_stops_and_is_the_one_in_the_artefact(tmp_path: Path) -> None:
    inputs = train_inputs(tmp_path / "inputs", num_rows=20, num_development=6)
    options = dataclasses.replace(OPTIONS, evaluate_steps=2, keep_last=1, learning_rate=5e-2)
    manifest = stage.run(options, inputs, Out(tmp_path / "whole"))
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    lengths = {
        n + 1: line["development"]["accept_length"] for n, line in enumerate(lines) if "development" in line
    }
    assert sorted(lengths) == sorted({*range(2, len(lines) + 1, 2), len(lines)})
    best = max(lengths, key=lambda step: (lengths[step], -step))
    assert best < len(lines), "the last step won, so this test shows nothing: choose another learning rate"
    assert manifest.actual["checkpoint"] == f"step-{best:06d}"
    assert manifest.actual["best"] == {"step": best, "accept_length": lengths[best]}
    assert manifest.actual["steps"] == len(lines)
    stops = [best + 1, len(lines) - 1]
    run_with_stops(inputs, tmp_path / "broken", dataclasses.replace(options, checkpoint_steps=1), stops)
    assert_equal_artefacts(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_c041_the_joined_row_log_is_that_of_the_unbroken_run(
    tmp_path: Path, packed: bool, loader_workers: int
) -> None:
    case = json.loads((CASES / "C041.run.json").read_text())
    inputs = train_inputs(tmp_path, num_rows=case["rows"])
    options = dataclasses.replace(
        OPTIONS,
        epochs=case["epochs"],
        seed=case["seed"],
        tokens_per_step=22 if packed else 1,
        checkpoint_steps=3,
    )
    stage.run(options, inputs, Out(tmp_path / "whole"))
    whole = [json.loads(line)["rows"] for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    stops = [stop for stop in case["stops_after_step"] if stop < len(whole)]
    read_ahead = dataclasses.replace(options, loader_workers=loader_workers)
    run_with_stops(inputs, tmp_path / "broken", read_ahead, stops)
    assert_equal_artefacts(tmp_path / "broken", tmp_path / "whole")
    broken = [
        json.loads(line)["rows"] for line in (tmp_path / "broken" / "log.jsonl").read_text().splitlines()
    ]
    assert broken == whole
    visits = [row for rows in broken for row in rows]
    assert sorted(visits) == sorted([*range(case["rows"])] * 2), "a row was repeated or skipped"
    if not packed:
        assert all(len(rows) == case["batch"] for rows in whole)


def test_kill_9_while_training_and_saving_changes_nothing(inputs: dict[str, Source], tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, epochs=12, checkpoint_steps=1)
    stage.run(options, inputs, Out(tmp_path / "whole"))
    sources = {role: [str(source.path), source.fingerprint] for role, source in inputs.items()}
    program = f"""
import pathlib
from eyas.core.artefact import Out
from eyas.core.manifest import Source
from eyas.drafter import stage
from eyas.drafter.options import NetworkOptions, TrainOptions
inputs = {{role: Source(pathlib.Path(path), digest) for role, (path, digest) in {sources!r}.items()}}
stage.run({options!r}, inputs, Out(pathlib.Path({str(tmp_path / "killed")!r})))
"""
    log = tmp_path / "killed" / PARTS / "log.jsonl"
    kills = 0
    for wanted in (2, 11):
        process = subprocess.Popen(
            [sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        while process.poll() is None:
            if log.exists() and log.read_bytes().count(b"\n") >= wanted:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        kills += process.returncode == -signal.SIGKILL
    assert kills
    manifest = stage.run(options, inputs, Out(tmp_path / "killed"))
    assert not spoiled(tmp_path / "killed", manifest)
    assert_equal_artefacts(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, StoppedEarly), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_stop_signal_writes_a_checkpoint_and_ends_as_resumable(
    inputs: dict[str, Source],
    unbroken: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    raised: type[BaseException],
) -> None:
    step = trainer.Trainer._step

    def signalled(self: trainer.Trainer, *args: object) -> dict:
        if self.position.step == 4:
            os.kill(os.getpid(), number)
        return step(self, *args)

    monkeypatch.setattr(trainer.Trainer, "_step", signalled)
    with pytest.raises(raised):
        stage.run(OPTIONS, inputs, Out(tmp_path / "run"))
    assert (tmp_path / "run" / PARTS / "step-000005" / "state.json").is_file()
    monkeypatch.undo()
    stage.run(OPTIONS, inputs, Out(tmp_path / "run"))
    assert_equal_artefacts(tmp_path / "run", unbroken)


def test_the_learning_rate_and_order_do_not_depend_on_checkpoint_settings(unbroken: Path) -> None:
    lines = [json.loads(line) for line in (unbroken / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert lines[0]["rate"] < lines[2]["rate"]
    assert lines[-1]["rate"] == pytest.approx(OPTIONS.learning_rate * OPTIONS.min_lr_share)
    assert torch.isfinite(torch.tensor([line["loss"] for line in lines])).all()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 3), (signal.SIGINT, 130)])
def test_the_command_stopped_by_a_signal_exits_as_resumable(
    inputs: dict[str, Source], tmp_path: Path, number: int, code: int
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "eyas", "train", inputs["extract"].path, "--vocab", inputs["vocab"].path]
    command += [
        "--target",
        inputs["target"].path,
        "--out",
        out,
        "--epochs",
        "5000",
        "--tokens-per-step",
        "22",
    ]
    process = subprocess.Popen(
        [*map(str, command)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
    )
    events = out / "tensorboard"
    while process.poll() is None and not events.is_dir():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    (checkpoint,) = (out / PARTS).glob("step-*")
    state = json.loads((checkpoint / "state.json").read_text())
    assert state["position"]["step"] > 0
    assert not (out / "manifest.json").exists()
