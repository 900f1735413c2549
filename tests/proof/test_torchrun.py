"""Jobs of two ranks under torchrun: one artefact, one report, an orderly end, and a dead rank that ends the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyas.core.artefact import Out
from eyas.core.manifest import Source, spoiled
from eyas.drafter import stage
from eyas.drafter.options import TrainOptions
from tiny import train_inputs

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").open()]


def torchrun(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    return subprocess.Popen(
        [*command, program, *arguments],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def write_program(folder: Path, inputs: dict, options: TrainOptions, before: str = "") -> Path:
    sources = {role: [str(source.path), source.fingerprint] for role, source in inputs.items()}
    path = folder / "program.py"
    path.write_text(f"""
import os, pathlib, sys
from eyas.core.artefact import Out
from eyas.core.errors import EyasError
from eyas.core.manifest import Source
from eyas.drafter import stage, trainer
from eyas.drafter.options import NetworkOptions, TrainOptions
inputs = {{role: Source(pathlib.Path(path), digest) for role, (path, digest) in {sources!r}.items()}}
code = 0
{before}
try:
    manifest = stage.run({options!r}, inputs, Out(pathlib.Path({str(folder / "run")!r})))
    assert manifest.actual["steps"]
except EyasError as error:
    code = error.exit_code
names = [(task / "comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
assert not any("gloo" in name for name in names), "threads of the process group live on and may abort the exit"
sys.exit(code)
""")
    return path


OPTIONS = TrainOptions(
    ttt_steps=2, epochs=2, tokens_per_step=30, warmup_steps=2, threads=1, tracker="none", evaluate_steps=3
)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_stage_under_torchrun_makes_one_artefact(tmp_path: Path, parallel: str) -> None:
    inputs = train_inputs(tmp_path / "inputs", num_development=3)
    options = TrainOptions(**{**OPTIONS.__dict__, "parallel": parallel})
    job = torchrun(str(write_program(tmp_path, inputs, options)))
    _, said = job.communicate(timeout=200)
    assert job.returncode == 0, said
    alone = stage.run(options, inputs, Out(tmp_path / "alone"))
    manifest = stage.run(options, inputs, Out(tmp_path / "run"))
    assert not spoiled(tmp_path / "run", manifest)
    assert manifest.run["processes"] == 2
    assert manifest.fingerprint == alone.fingerprint
    assert manifest.actual["terms"] == alone.actual["terms"]
    assert manifest.actual["best"] == alone.actual["best"]
    for one, two in zip(lines(tmp_path / "alone"), lines(tmp_path / "run"), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)


def test_a_dead_rank_ends_the_job_with_its_error(tmp_path: Path) -> None:
    inputs = train_inputs(tmp_path / "inputs")
    before = """
step = trainer.Trainer._step
def dying(self, *arguments):
    if self.world.rank == 1 and self.position.step == 3:
        raise RuntimeError("the row could not be read on rank one")
    return step(self, *arguments)
trainer.Trainer._step = dying
"""
    begun = time.monotonic()
    job = torchrun(str(write_program(tmp_path, inputs, OPTIONS, before)))
    _, said = job.communicate(timeout=150)
    assert job.returncode != 0
    assert "could not be read on rank one" in said
    assert time.monotonic() - begun < 120, "the other rank hung"
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_stops_all_of_them_with_a_checkpoint(tmp_path: Path, parallel: str) -> None:
    inputs = train_inputs(tmp_path / "inputs")
    before = """
import signal
step = trainer.Trainer._step
def signalled(self, *arguments):
    if self.world.rank == 1 and self.position.step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, *arguments)
trainer.Trainer._step = signalled
"""
    options = TrainOptions(**{**OPTIONS.__dict__, "parallel": parallel})
    job = torchrun(str(write_program(tmp_path, inputs, options, before)))
    _, said = job.communicate(timeout=150)
    assert job.returncode != 0
    assert "exitcode  : 3" in said, said[-3000:]
    assert (tmp_path / "run" / "parts" / "step-000004" / "state.json").is_file()


def train_command(inputs: dict[str, Source], out: Path) -> list[str]:
    states, vocabulary, target = (str(inputs[role].path) for role in ("extract", "vocab", "target"))
    given = ["--vocab", vocabulary, "--target", target, "--out", str(out)]
    return ["-m", "eyas", "train", states, *given, "--ttt-steps", "2", "--epochs", "1"]


def test_rank_0_alone_prints_the_one_object_of_a_job(tmp_path: Path) -> None:
    job = torchrun(*train_command(train_inputs(tmp_path / "inputs"), tmp_path / "run"), "--json")
    printed, said = job.communicate(timeout=150)
    assert job.returncode == 0, said
    assert json.loads(printed)["stage"] == "train", "more than one object on standard output is no JSON"


def test_rank_0_alone_prints_the_line_of_a_job(tmp_path: Path) -> None:
    job = torchrun(*train_command(train_inputs(tmp_path / "inputs"), tmp_path / "run"))
    printed, said = job.communicate(timeout=150)
    assert job.returncode == 0, said
    assert printed.splitlines()[0].startswith("train "), printed
    assert printed.count("train ") == 1, "every rank prints the report"


def test_a_mistake_is_never_more_than_one_object(tmp_path: Path) -> None:
    """torchrun ends the others at once when a rank ends: where rank 1 was first, its message is what remains."""
    command = train_command(train_inputs(tmp_path / "inputs"), tmp_path / "run")
    command[command.index("--vocab") + 1] = str(tmp_path)
    job = torchrun(*command, "--json")
    printed, said = job.communicate(timeout=150)
    assert "exitcode  : 2" in said, said[-3000:]
    assert json.loads(printed)["error"]["what"] if printed else "eyas: " in said
