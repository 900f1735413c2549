"""What is exported: the average of the weights where one is asked for, of the best step where a split chooses one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.core.artefact import Out
from eyas.core.manifest import Source
from eyas.drafter import stage
from eyas.drafter.optimizer import Optimizer
from eyas.drafter.options import TrainOptions
from eyas.export import stage as export_stage
from eyas.export.options import ExportOptions
from tiny import train_inputs

KEPT = 0.9


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """The trained weights after each optimiser step, taken beside the optimiser's own book-keeping."""
    seen: list[dict[str, Tensor]] = []
    step = Optimizer.step

    def watched(self: Optimizer, rate: float) -> None:
        step(self, rate)
        seen.append({name: parameter.detach().clone() for name, parameter in self._named})

    monkeypatch.setattr(Optimizer, "step", watched)
    return seen


def averaged(steps: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    mean = {name: weight.clone() for name, weight in steps[0].items()}
    for weights in steps[1:]:
        for name, weight in weights.items():
            mean[name].lerp_(weight, 1 - KEPT)
    return mean


@pytest.mark.parametrize("chosen_by", ["the last step", "a development split"])
@pytest.mark.parametrize("average", [0.0, KEPT])
def test_the_exported_tensors_are_those_that_training_chose(
    tmp_path: Path, steps: list[dict[str, Tensor]], average: float, chosen_by: str
) -> None:
    has_split = chosen_by == "a development split"
    inputs = train_inputs(tmp_path / "inputs", num_development=4 if has_split else 0)
    options = TrainOptions(
        ttt_steps=2, epochs=3, tokens_per_step=60, threads=1, tracker="none", learning_rate=0.03, warmup_steps=2,
        train_head=True, average=average, evaluate_steps=2 if has_split else 0,
    )  # fmt: skip
    manifest = stage.run(options, inputs, Out(tmp_path / "train"))
    chosen = len(steps)
    if has_split:
        log = [json.loads(line) for line in (tmp_path / "train" / "log.jsonl").open()]
        lengths = {
            i + 1: line["development"]["accept_length"] for i, line in enumerate(log) if "development" in line
        }
        chosen = max(lengths, key=lambda step: (lengths[step], -step))
        assert chosen < len(steps), (
            "the last step won, so this test shows nothing: choose another learning rate"
        )
    expected = averaged(steps[:chosen]) if average else steps[chosen - 1]
    assert not average or any(not torch.equal(expected[name], steps[chosen - 1][name]) for name in expected)

    source = {"train": Source(tmp_path / "train", manifest.fingerprint), "target": inputs["target"]}
    export_stage.run(ExportOptions(engines=("vllm",)), source, Out(tmp_path / "export"))
    stored = load_file(tmp_path / "export" / "vllm" / "model.safetensors")
    for name, weight in expected.items():
        assert torch.equal(stored[name], weight), (
            f"the engine gets a {name} that was neither walked nor chosen"
        )
