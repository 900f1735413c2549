from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import tinytarget as tiny
from eyas.pipeline import STAGES

Run = Callable[..., object]

DETERMINISTIC = ("generate", "tokenize", "merge", "extract", "vocab", "train", "export")


def files(workspace: Path, stage: str) -> dict[str, bytes]:
    """Every file of a stage's artefact, the manifest without its run; the unit log and curves are left out."""
    (folder,) = (workspace / stage).iterdir()
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "units.jsonl" and path.parent.name != "tensorboard":
            data = path.read_bytes()
            if path.name == "manifest.json":
                fields = orjson.loads(data)
                del fields["run"]
                data = orjson.dumps(fields)
            found[str(path.relative_to(folder))] = data
    return found


def test_a_run_prints_one_object_with_everything_promised(finished: Path) -> None:
    printed = json.loads((finished / "printed.json").read_text())
    for key in (
        "accept_length", "accept_length_by_dataset", "floors", "decoded_prompts", "decoded_accept_length",
        "decoded_walk", "identical_outputs", "speedup", "round_cost", "coverage", "peak_rss_mb", "stages",
    ):  # fmt: skip
        assert key in printed, f"--json lacks {key}"
    assert [stage["name"] for stage in printed["stages"]] == list(STAGES)
    assert set(printed["speedup"]) == {"1", "2", "3"} == set(printed["round_cost"])
    assert printed["identical_outputs"] is True
    assert printed["decoded_accept_length"] == printed["decoded_walk"]


def test_a_second_run_does_nothing_quickly_and_prints_the_same(
    eyas: Run, recipe: Path, finished: Path
) -> None:
    begun = time.monotonic()
    again = eyas("run", recipe, "--workspace", finished, "--json")
    assert time.monotonic() - begun < 3, "looking at finished work takes too long"
    assert "nothing to do" in again.stderr
    first, second = json.loads((finished / "printed.json").read_text()), json.loads(again.stdout)
    for result in (first, second):
        for stage in result["stages"]:
            stage.pop("reused")
    assert second == first


def test_a_run_broken_by_kill_in_every_stage_ends_in_the_same_bytes(
    eyas: Run, recipe: Path, finished: Path, tmp_path: Path
) -> None:
    points = ["unit", "unit", "publish", "unit", "publish", "checkpoint", "unit", "unit"]
    for stage, point in zip(STAGES, points, strict=True):
        killed = eyas("run", recipe, "--workspace", tmp_path, die=(stage, point))
        assert killed.returncode == -9, f"{stage} never reached {point}: {killed.stderr}"
    done = eyas("run", recipe, "--workspace", tmp_path)
    assert done.returncode == 0, done.stderr
    for stage in DETERMINISTIC:
        assert files(tmp_path, stage) == files(finished, stage), f"{stage}: a kill left other bytes behind"


@pytest.mark.parametrize("point", ["claim", "manifest"])
def test_a_kill_around_the_manifest_is_survived(
    eyas: Run, recipe: Path, finished: Path, tmp_path: Path, point: str
) -> None:
    for stage in ("generate", "extract"):
        assert (
            eyas("run", recipe, "--workspace", tmp_path, "--until", "vocab", die=(stage, point)).returncode
            == -9
        )
    assert eyas("run", recipe, "--workspace", tmp_path, "--until", "vocab").returncode == 0
    for stage in DETERMINISTIC[:5]:
        assert files(tmp_path, stage) == files(finished, stage)


@pytest.mark.parametrize(
    ("section", "change", "first"),
    [
        ("generation", {"max_new_tokens": 15}, "generate"),
        ("merge", {"seed": 7}, "merge"),
        ("states", {"shard_tokens": 200}, "extract"),
        ("vocabulary", {"size": 100}, "vocab"),
        ("training", {"learning_rate": 0.001}, "train"),
        ("export", {"licence": "mit"}, "export"),
        ("bench", {"max_new_tokens": 9}, "bench"),
    ],
)
def test_one_changed_value_moves_only_the_stages_that_depend_on_it(
    eyas: Run,
    tiny_target: Path,
    finished: Path,
    recipe: Path,
    tmp_path: Path,
    section: str,
    change: dict[str, object],
    first: str,
) -> None:
    changed = tiny.write_recipe(tmp_path, tiny_target, **{section: change})
    states = {
        s["name"]: s["state"]
        for s in json.loads(eyas("status", changed, "--workspace", finished, "--json").stdout)["stages"]
    }
    apart = {"extract": {"vocab"}, "vocab": {"extract"}}.get(first, set())
    for stage in STAGES:
        depends = STAGES.index(stage) >= STAGES.index(first) and stage not in apart
        assert (states[stage] == "to do") == depends, f"{section} {change}: {stage} is {states[stage]}"


def test_workers_and_names_and_places_move_nothing(
    eyas: Run, tiny_target: Path, finished: Path, tmp_path: Path
) -> None:
    changed = tiny.write_recipe(
        tmp_path, tiny_target, name="other", generation={"workers": 2}, states={"workers": 2}
    )
    states = json.loads(eyas("status", changed, "--workspace", finished, "--json").stdout)["stages"]
    assert {s["state"] for s in states} == {"complete"}, (
        "another name or number of workers would redo finished work"
    )


def test_from_makes_a_stage_and_later_ones_anew(
    eyas: Run, recipe: Path, finished: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "copy"
    shutil.copytree(finished, workspace)
    done = eyas("run", recipe, "--workspace", workspace, "--from", "vocab", "--until", "vocab", "--json")
    reused = {stage["name"]: stage["reused"] for stage in json.loads(done.stdout)["stages"]}
    assert reused == {"generate": True, "tokenize": True, "merge": True, "extract": True, "vocab": False}
    assert files(workspace, "vocab") == files(finished, "vocab")


def test_from_needs_what_comes_before(eyas: Run, recipe: Path, tmp_path: Path) -> None:
    done = eyas("run", recipe, "--workspace", tmp_path, "--from", "train")
    assert done.returncode == 2
    assert "generate is not complete" in done.stderr


def test_verify_finds_a_flipped_byte_and_exits_with_1(
    eyas: Run, recipe: Path, finished: Path, tmp_path: Path
) -> None:
    assert eyas("verify", recipe, "--workspace", finished).returncode == 0
    workspace = tmp_path / "copy"
    shutil.copytree(finished, workspace)
    (shard,) = list((workspace / "extract").rglob("states-00000.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    done = eyas("verify", recipe, "--workspace", workspace)
    assert done.returncode == 1
    assert "states-00000.safetensors: its bytes are not those that were written" in done.stdout


def test_plan_counts_rows_and_spends_nothing(eyas: Run, recipe: Path, tmp_path: Path) -> None:
    done = eyas("plan", "run", recipe, "--workspace", tmp_path / "none", "--json")
    plan = json.loads(done.stdout)
    assert {s["name"]: s["rows"] for s in plan["stages"]}["generate"] == 16
    assert not (tmp_path / "none").exists()


def test_a_run_ends_with_its_report_also_when_everything_was_there(
    eyas: Run, recipe: Path, finished: Path
) -> None:
    report = finished / "report.html"
    first = report.read_text()
    assert json.loads((finished / "printed.json").read_text())["verdict"] in first
    for part in ("held", "The chain", "predicted", "all slots", "coverage", "floor: bigram", "<svg"):
        assert part in first, f"the report lacks {part}"
    report.unlink()
    again = eyas("run", recipe, "--workspace", finished)
    assert f"report: {report}" in again.stderr
    assert report.read_text().replace("reused", "") == first.replace("reused", ""), "it tells another story"
    assert eyas("verify", recipe, "--workspace", finished).returncode == 0


def test_without_matplotlib_the_report_has_all_but_the_plots_and_says_so(
    eyas: Run, recipe: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "copy"
    shutil.copytree(finished, workspace)
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')")
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([path] if path else [])]))
    done = eyas("run", recipe, "--workspace", workspace)
    assert done.returncode == 0, done.stderr
    report = (workspace / "report.html").read_text()
    assert "<svg" not in report
    assert "The chain" in report
    for text in (done.stderr, report):
        assert "eyas[bench]" in text, "nobody is told why the plots are missing"


def test_a_run_that_was_ended_early_reports_what_it_has(
    eyas: Run, recipe: Path, finished: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "copy"
    shutil.copytree(finished, workspace)
    done = eyas("run", recipe, "--workspace", workspace, "--until", "merge")
    assert done.returncode == 0, done.stderr
    assert "no accept length is measured yet" in (workspace / "report.html").read_text()


def test_the_command_that_the_plan_names_measures_the_break_even_it_shows(
    eyas: Run, recipe: Path, tmp_path: Path
) -> None:
    workspace = tmp_path / "a workspace"
    before = json.loads(eyas("plan", "run", recipe, "--workspace", workspace, "--json").stdout)["break_even"]
    assert before["measured"] is False
    name, *arguments = shlex.split(before["command"])
    assert name == "eyas"
    done = eyas(*arguments)
    assert done.returncode == 0, done.stderr
    after = json.loads(eyas("plan", "run", recipe, "--workspace", workspace, "--json").stdout)["break_even"]
    results = json.loads((workspace / "break-even" / "results.json").read_text())
    assert after["measured"] is True
    assert after["rows"] == results["break_even"]
    assert [row["draft_tokens"] for row in after["rows"]] == [1, 2, 3]
