"""`eyas export` as a command: what it writes, what it refuses, its exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import typer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import toy
from eyas.core.errors import EyasError, FaultFound
from eyas.core.manifest import Source
from eyas.export.command import export_command


def command(*arguments: object) -> str:
    app = typer.Typer()
    app.command()(export_command)
    done = CliRunner().invoke(app, [str(a) for a in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture
def exported(tmp_path: Path, train: Source, target_folder: Path) -> Path:
    out = tmp_path / "out"
    command(train.path, "--engine", "vllm", "--engine", "sglang", "--out", out, "--target", target_folder)
    return out


def test_one_folder_is_written_for_each_engine(exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir() if path.is_dir()) == ["sglang", "vllm"]


def test_a_step_of_a_train_artefact_knows_its_boundaries(
    tmp_path: Path, train: Source, target_folder: Path, exported: Path
) -> None:
    step = train.path / "step-000007"
    command(step, "--engine", "vllm", "--out", tmp_path / "step", "--target", target_folder)
    name = "vllm/config.json"
    assert (tmp_path / "step" / name).read_bytes() == (exported / name).read_bytes()


def test_a_bare_checkpoint_needs_its_boundaries_said(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    (train.path / "manifest.json").unlink()
    bare, given = train.path / "step-000007", ",".join(map(str, toy.BOUNDARIES))
    command(
        bare, "--engine", "vllm", "--out", tmp_path / "o", "--target", target_folder, "--boundaries", given
    )
    fields = orjson.loads((tmp_path / "o" / "vllm" / "config.json").read_bytes())
    assert fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == list(toy.BOUNDARIES)


def test_a_missing_target_is_asked_for(tmp_path: Path, train: Source) -> None:
    with pytest.raises(EyasError, match="target of this checkpoint is not known"):
        command(train.path, "--engine", "vllm", "--out", tmp_path / "o")


def test_a_spoiled_folder_fails_with_exit_code_one_and_the_reason(
    exported: Path, target_folder: Path
) -> None:
    file = exported / "sglang" / "model.safetensors"
    save_file({n.replace("midlayer.", "layers.0."): t for n, t in load_file(file).items()}, file)
    with pytest.raises(FaultFound, match="sglang would not read") as caught:
        command("--check", exported, "--engine", "sglang", "--target", target_folder)
    assert caught.value.exit_code == 1
    assert "drops it without a word" in str(caught.value.found)


def test_the_check_prints_one_object(exported: Path, target_folder: Path) -> None:
    file = exported / "vllm" / "model.safetensors"
    save_file({n: t for n, t in load_file(file).items() if n != "lm_head.weight"}, file)
    app = typer.Typer()
    app.command()(export_command)
    done = CliRunner().invoke(app, ["--check", str(exported / "vllm"), "--engine", "vllm", "--json"])
    assert done.exit_code == 1
    report = orjson.loads(done.stdout)
    assert not report["passed"]
    assert {"tensor": "lm_head.weight", "fate": "missing", "shape": None}.items() <= next(
        line for line in report["tensors"] if line["tensor"] == "lm_head.weight"
    ).items()


@pytest.mark.parametrize(
    "arguments",
    [["--check", "x"], ["--check", "x", "--engine", "vllm", "--out", "y"], ["x", "--strict"], ["x"]],
)
def test_options_that_do_nothing_are_refused(arguments: list[str]) -> None:
    with pytest.raises(EyasError):
        command(*arguments)


def test_the_module_is_light_to_import() -> None:
    code = (
        "import sys, eyas.export.command\n"
        "print(sorted({'torch', 'numpy', 'transformers', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "`eyas --help` would wait for it"
