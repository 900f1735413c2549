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

        def dying(self: trainer.Trainer, rows: list[int], after: object, stop: int = stop) -> dict:
            if self.position.step == stop:
                raise Killed
            return step(self, rows, after)

        trainer.Trainer._step = dying
        try:
            with pytest.raises(Killed):
                stage.run(options, inputs, Out(folder))
        finally:
            trainer.Trainer._step = step
        assert (folder / PARTS).is_dir()
    stage.run(options, inputs, Out(folder))


def assert_equal_artefacts(found: Path, expected: Path) -> None:
    names = {str(p.relative_to(expected)) for p in expected.rglob("*") if p.is_file()} - {"manifest.json"}
    assert {str(p.relative_to(found)) for p in found.rglob("*") if p.is_file()} - {"manifest.json"} == names
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


@pytest.mark.parametrize("packed", [False, True])
def test_c041_the_joined_row_log_is_that_of_the_unbroken_run(tmp_path: Path, packed: bool) -> None:
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
    run_with_stops(inputs, tmp_path / "broken", options, stops)
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
from eyas.drafter.options import TrainOptions
inputs = {{role: Source(pathlib.Path(path), digest) for role, (path, digest) in {sources!r}.items()}}
stage.run(TrainOptions(**{dataclasses.asdict(options)!r}), inputs, Out(pathlib.Path({str(tmp_path / "killed")!r})))
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


def test_a_stop_signal_writes_a_checkpoint_and_ends_as_resumable(
    inputs: dict[str, Source], unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = trainer.Trainer._step

    def signalled(self: trainer.Trainer, rows: list[int], after: object) -> dict:
        if self.position.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, rows, after)

    monkeypatch.setattr(trainer.Trainer, "_step", signalled)
    with pytest.raises(StoppedEarly):
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
