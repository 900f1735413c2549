"""What `eyas bench --out` leaves behind, whatever happens to the plots."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import orjson
import pytest
from PIL import Image

from bench_cli import command, command_and_stderr


def test_results_and_plots_are_written(
    tmp_path: Path, chat_target: Path, drafter_folder: Path, row_set: Path
) -> None:
    out = tmp_path / "results"
    given = ("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, "--limit", 2)
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
    chat_target: Path,
    drafter_folder: Path,
    row_set: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "results"
    given = ("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, "--limit", 1)
    found, said = command_and_stderr(*given, "--max-tokens", 4, "--out", out)
    assert orjson.loads((out / "results.json").read_bytes()) == found
    for text in (said, (out / "report.html").read_text()):
        assert "eyas[bench]" in text, "nobody is told why the plots are missing"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "results.json"]


def test_a_drawing_that_fails_costs_no_measurement(
    tmp_path: Path,
    chat_target: Path,
    drafter_folder: Path,
    row_set: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(charts: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("eyas.report.draw.draw", failing)
    out = tmp_path / "results"
    given = ("--target", chat_target, "--drafter", drafter_folder, "--prompts", row_set, "--limit", 1)
    with pytest.raises(OSError, match="no space"):
        command(*given, "--max-tokens", 4, "--out", out)
    assert orjson.loads((out / "results.json").read_bytes())["cells"]
