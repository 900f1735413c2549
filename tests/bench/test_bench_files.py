"""What `eyas bench --out` leaves behind, whatever happens to the plots."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from bench_cli import command, command_and_stderr
from eyas.bench.measured import Measured
from eyas.bench.systems import HfSystem
from eyas.core.errors import EyasError
from eyas.verification import artefact

Asked = tuple[object, ...]


@pytest.fixture
def asked(chat_target: Path, drafter_folder: Path, row_set: Path) -> Asked:
    """What all of these benchmarks ask for."""
    return ("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set)


def test_results_and_plots_are_written(tmp_path: Path, asked: Asked) -> None:
    out = tmp_path / "results"
    given = (*asked, "--limit", 2)
    found = command(*given, "--max-tokens", 8, "--out", out)
    assert orjson.loads((out / "results.json").read_bytes()) == found
    for name in ("acceptance_by_position", "accept_length", "speedup"):
        assert ET.fromstring((out / f"{name}.svg").read_bytes()).tag.endswith("svg")
        width, height = Image.open(out / f"{name}.png").size
        assert 1000 < width < 2500
        assert 400 < height < 2500
    assert "<svg" in (out / "report.html").read_text()
    assert str(tmp_path) not in (out / "results.json").read_text()
    assert str(tmp_path) not in (out / "report.html").read_text()


def test_without_matplotlib_the_measurement_is_kept_and_the_mend_is_said(
    tmp_path: Path,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "results"
    given = (*asked, "--limit", 1)
    found, said = command_and_stderr(*given, "--max-tokens", 4, "--out", out)
    assert orjson.loads((out / "results.json").read_bytes()) == found
    for text in (said, (out / "report.html").read_text()):
        assert "eyas[bench]" in text, "nobody is told why the plots are missing"
    assert not [path for path in out.iterdir() if path.suffix in (".png", ".svg")]


def test_a_drawing_that_fails_costs_no_measurement(
    tmp_path: Path,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(charts: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("eyas.bench.artefact.draw", failing)
    out = tmp_path / "results"
    given = (*asked, "--limit", 1)
    with pytest.raises(OSError, match="no space"):
        command(*given, "--max-tokens", 4, "--out", out)
    assert orjson.loads((out / "results.json").read_bytes())["cells"]


def interrupted_after(blocks: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the reference decoder stop after so many blocks; the count of blocks that it measured."""
    measure, calls = HfSystem.measure, [0]

    def stopping(self: HfSystem, *asked: Any) -> Measured:
        if calls[0] == blocks:
            raise RuntimeError("the machine goes down")
        calls[0] += 1
        return measure(self, *asked)

    monkeypatch.setattr(HfSystem, "measure", stopping)
    return calls


def test_a_stopped_benchmark_goes_on_where_it_was(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results"
    given = (*asked, "--limit", 3)
    more = ("--max-tokens", 6, "--draft-tokens", "1,3", "--out", out)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="goes down"):
        interrupted_after(8, patch)
        command(*given, *more)
    with monkeypatch.context() as patch:
        calls = interrupted_after(100, patch)
        found, said = command_and_stderr(*given, *more)
    assert calls == [4], "2 settings of 3 prompts, plain and drafted, are 12 blocks, and 8 were there"
    assert "8 blocks were measured by an earlier run" in said
    assert [cell["requests"] for cell in found["cells"]] == [3, 3]
    assert all(cell["identical_outputs"] for cell in found["cells"])


def test_a_complete_benchmark_is_shown_again_and_measured_anew_only_when_told(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results"
    given = (*asked, "--limit", 1)
    first = command(*given, "--max-tokens", 4, "--out", out)
    calls = interrupted_after(100, monkeypatch)
    again, said = command_and_stderr(*given, "--max-tokens", 4, "--out", out)
    assert again == first
    assert "reused" in said
    assert calls == [0]
    command(*given, "--max-tokens", 4, "--out", out, "--overwrite")
    assert calls == [2]


def test_another_benchmark_does_not_replace_the_one_that_is_there(tmp_path: Path, asked: Asked) -> None:
    out = tmp_path / "results"
    given = (*asked, "--limit", 1)
    command(*given, "--max-tokens", 4, "--out", out)
    with pytest.raises(EyasError, match="holds something else"):
        command(*given, "--max-tokens", 5, "--out", out)


def test_a_benchmark_can_be_verified(tmp_path: Path, asked: Asked) -> None:
    out = tmp_path / "results"
    given = (*asked, "--limit", 1)
    command(*given, "--max-tokens", 4, "--out", out)
    assert artefact(out) == []
    (out / "results.json").write_bytes(b"{}")
    assert any("results.json" in fault for fault in artefact(out))
