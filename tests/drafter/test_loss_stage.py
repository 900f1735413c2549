"""The train stage under every objective, preset, attention and rule for long rows; the manifest says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from eyas.core.artefact import Out
from eyas.core.manifest import Manifest, Source
from eyas.drafter import stage
from eyas.drafter.options import TrainOptions
from tiny import train_inputs


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    return train_inputs(tmp_path_factory.mktemp("inputs"))


def trained(inputs: dict[str, Source], folder: Path, **changes: Any) -> tuple[Manifest, dict[str, Any]]:
    settings = {
        "ttt_steps": 2,
        "epochs": 2,
        "tokens_per_step": 30,
        "warmup_steps": 1,
        "threads": 1,
        "walk_drafts": 2,
    }
    options = TrainOptions(**{**settings, "tracker": "none", **changes})
    manifest = stage.run(options, inputs, Out(folder))
    return manifest, load_file(folder / manifest.actual["checkpoint"] / "model.safetensors")


@pytest.mark.parametrize("objective", ["cross_entropy", "lk_alpha", "lk_lambda"])
@pytest.mark.parametrize("preset", ["eyas", "eagle", "automodel"])
def test_every_objective_and_preset_trains(
    inputs: dict[str, Source], tmp_path: Path, objective: str, preset: str
) -> None:
    manifest, weights = trained(inputs, tmp_path / "run", objective=objective, preset=preset)
    _, other = trained(inputs, tmp_path / "other")
    assert manifest.actual["steps"] > 0
    same = all((weights[name] == other[name]).all() for name in weights)
    assert same == (objective == "cross_entropy" and preset == "eyas"), "the option changes nothing"


def test_the_attention_that_was_used_is_in_the_manifest_and_moves_last_bits_alone(
    inputs: dict[str, Source], tmp_path: Path
) -> None:
    fused, weights = trained(inputs, tmp_path / "fused")
    plain, other = trained(inputs, tmp_path / "plain", attention="plain")
    assert (fused.actual["attention"], plain.actual["attention"]) == ("cpu_fused", "plain")
    for name, tensor in weights.items():
        assert (tensor.double() - other[name].double()).abs().max() < 1e-3, name


def test_cut_rows_are_counted_in_the_manifest(inputs: dict[str, Source], tmp_path: Path) -> None:
    whole, _ = trained(inputs, tmp_path / "whole", tokens_per_step=9, epochs=1)
    cut, _ = trained(inputs, tmp_path / "cut", tokens_per_step=9, epochs=1, over_budget="cut")
    assert whole.actual["cuts"] == {"rows": 0, "tokens": 0}
    assert cut.actual["cuts"]["rows"] > 0
    assert cut.actual["tokens"] == whole.actual["tokens"] - cut.actual["cuts"]["tokens"]
    assert cut.actual["rows"] == whole.actual["rows"]


def test_a_setting_without_effect_is_said(
    inputs: dict[str, Source], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(inputs, tmp_path / "run", lk_decay=1.0, epochs=1)
    assert "training.lk_decay has no effect" in capsys.readouterr().err
