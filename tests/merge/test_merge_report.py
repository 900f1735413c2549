from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from eyas.core.errors import EyasError
from eyas.merge.command import merge_command
from eyas.plan.merge import plan_merge, plan_merge_command
from eyas.report import merge as report
from token_sets import make_corpus, merge, row, rows, write_sets


def shown(*parts: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    for part in parts:
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return write_sets(tmp_path / "in", A=[*rows(1, 60), b"broken"], B=rows(2, 80), C=rows(3, 9))


@pytest.mark.parametrize(
    "expected", [{}, {"expect_records": 170}, {"expect_records": 100, "expect_tokens": 5}]
)
def test_every_difference_from_the_prediction_is_explained_to_nothing(
    tmp_path: Path, sets: Path, expected: dict[str, int]
) -> None:
    manifest = merge(
        tmp_path / "out", sets, exclude=("C",), max_seq_len=20, dedup=True, sample={"B": 0.7}, cap={"A": 30},
        cap_tokens={"A": 400}, min_trainable=3,
    )  # fmt: skip
    found = report.as_json(manifest, **expected)
    steps = found["explained"]
    for figure in ("records", "tokens"):
        assert sum(step[figure] for step in steps[:-1]) == steps[-1][figure], f"{figure} are not explained"
        assert steps[0][figure] == expected.get(f"expect_{figure}", found["predicted"][figure])
    assert (
        steps[-1]["records"]
        == found["records_kept"]
        == sum(entry["records_kept"] for entry in found["datasets"])
    )
    assert found["records_in"] == found["records_kept"] + sum(found["dropped"].values())


def test_the_sample_predicts_before_anything_is_counted(tmp_path: Path) -> None:
    make_corpus(tmp_path / "in", "--scale", "0.05")
    manifest = merge(tmp_path / "out", tmp_path / "in", exclude=("A1",))
    for figure, kept, error in (("rows", "records_kept", 0.2), ("tokens", "tokens_kept", 0.08)):
        assert abs(manifest.predicted[figure] / manifest.actual[kept] - 1) < error
    assert manifest.predicted["rows"] != manifest.actual["records_kept"], "that was counted, not predicted"


def test_text_from_data_is_never_markup(tmp_path: Path) -> None:
    name = "[bold red]x"
    sets = write_sets(
        tmp_path / "in", **{name: [*rows(1, 9), b'{"input_ids": ["[blink]"], "loss_mask": [1]}']}
    )
    text = shown(*report.parts(merge(tmp_path / "out", sets)))
    assert name in text
    assert "[blink]" in text


def run_command(*arguments: str | Path) -> Any:
    app = Typer(pretty_exceptions_enable=False)
    app.command()(merge_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_prints_one_json_object(tmp_path: Path, sets: Path) -> None:
    arguments = [
        sets,
        "--out",
        tmp_path / "out",
        "--exclude",
        "C",
        "--cap",
        "B=10",
        "--sample",
        "A=0.5",
        "--json",
    ]
    result = run_command(*arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {"records_in", "records_kept", "tokens_kept", "dropped", "datasets"} <= found.keys()
    wanted = {
        "name",
        "records_in",
        "records_kept",
        "tokens_in",
        "tokens_kept",
        "dropped",
        "trainable_tokens",
        "cut_records",
    }
    assert all(wanted <= entry.keys() for entry in found["datasets"])
    assert found["datasets"][1]["records_kept"] == 10
    again = run_command(*arguments)
    assert json.loads(again.stdout) == found, "a finished corpus is reported as it was"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cap", "B"], "--cap is not NAME=NUMBER"),
        (["--sample", "B=lots"], "--sample is not NAME=NUMBER"),
        (["--cap", "B=1", "--cap", "B=2"], "twice"),
        (["--cut", "word"], "--cut has an unknown value"),
        (["--min-kept", "2"], "--min-kept has a value that makes no sense"),
        (["--exclude", "B", "--cap", "B=1"], "leaves out"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    tmp_path: Path, sets: Path, arguments: list[str], message: str
) -> None:
    result = run_command(sets, "--out", tmp_path / "out", *arguments)
    assert isinstance(result.exception, EyasError)
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_the_commands_are_there_at_once() -> None:
    code = "import sys, eyas.merge.command, eyas.plan.merge; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_the_plan_says_what_merge_will_keep(tmp_path: Path, sets: Path) -> None:
    generator = random.Random(5)
    late = [row(generator, 30, input_ids=list(range(30)), loss_mask=[0] * 20 + [1] * 10) for _ in range(7)]
    just = [
        row(generator, 12, loss_mask=[1] + [0] * 8 + [1, 0, 0]) for _ in range(5)
    ]  # two labels in the first ten
    write_sets(sets, E=just, D=[json.dumps(line).replace(", ", " , ").encode() for line in late])
    plan = plan_merge([sets], [10, 25, 10_000], 100, 1000, exclude=["C"], min_trainable=2)
    for entry in plan["cuts"]:
        cut = entry["max_seq_len"]
        manifest = merge(
            tmp_path / f"{cut}", sets, exclude=("C",), max_seq_len=cut, min_trainable=2, min_kept=0
        )
        total = manifest.actual
        assert (entry["records"], entry["tokens"]) == (total["records_kept"], total["tokens_kept"])
        assert entry["cut_records"] == total["cut_records"]
        for planned, got in zip(entry["datasets"], total["datasets"], strict=True):
            assert (planned["records"], planned["tokens"]) == (got["records_kept"], got["tokens_kept"])
            assert planned["without"]["tokens"] == total["tokens_kept"] - got["tokens_kept"]
        assert entry["bytes"] == entry["tokens"] * 100
        assert entry["hours"] == round(entry["tokens"] / 3.6e6, 3)


def test_the_plan_shows_the_dataset_that_costs_most(tmp_path: Path) -> None:
    """On the reference corpus A1 is 32 % of the tokens in 7 % of the records."""
    make_corpus(tmp_path / "in", "--scale", "0.02")
    app = Typer(pretty_exceptions_enable=False)
    app.command()(plan_merge_command)
    result = CliRunner().invoke(app, [str(tmp_path / "in"), "--json"])
    cuts = {entry["max_seq_len"]: entry for entry in json.loads(result.stdout)["cuts"]}
    assert list(cuts) == [4096, 8192, 12288, 16384]
    a1 = cuts[16384]["datasets"][0]
    assert a1["name"] == "A1"
    assert 0.30 < a1["share_of_tokens"] < 0.34
    assert 0.065 < a1["share_of_records"] < 0.075
    assert "A1" in CliRunner().invoke(app, [str(tmp_path / "in")]).stdout
