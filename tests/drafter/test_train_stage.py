"""The stage on tiny files: what it writes, what it refuses, where it starts from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.core.artefact import Out
from eyas.core.contract import read_facts
from eyas.core.errors import EyasError
from eyas.core.manifest import Source, spoiled
from eyas.drafter import stage
from eyas.drafter.config import DrafterConfig
from eyas.drafter.coverage import FullHead
from eyas.drafter.network import load_drafter
from eyas.drafter.options import NetworkOptions, TrainOptions
from eyas.drafter.target_weights import TargetWeights
from eyas.drafter.walk import walk_store
from eyas.states.store import StateStore
from tiny import VOCAB, tiny_row, train_inputs, write_extract, write_vocabulary

OPTIONS = TrainOptions(ttt_steps=2, epochs=2, tokens_per_step=30, warmup_steps=3, threads=1)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    return train_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def trained(inputs: dict[str, Source], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "run"
    stage.run(OPTIONS, inputs, Out(folder))
    return folder


def test_the_artefact_is_one_checkpoint_its_walk_and_a_log(trained: Path, inputs: dict[str, Source]) -> None:
    manifest = stage.run(OPTIONS, inputs, Out(trained))
    final = manifest.actual["checkpoint"]
    names = {
        f"{final}/config.json",
        f"{final}/model.safetensors",
        f"{final}/state.json",
        "walk.json",
        "log.jsonl",
    }
    assert {output.file for output in manifest.outputs} == names
    assert not spoiled(trained, manifest)
    lying = {str(p.relative_to(trained)) for p in trained.rglob("*") if p.is_file()}
    assert {name for name in lying if not name.startswith("tensorboard/")} == names | {"manifest.json"}
    assert manifest.actual["rows"] == manifest.predicted["rows"] == 24
    assert manifest.actual["tokens"] == manifest.predicted["tokens"]
    assert manifest.actual["parameters"] == manifest.predicted["parameters"]


def test_the_walk_in_the_artefact_is_that_of_the_weights_in_it(
    trained: Path, inputs: dict[str, Source]
) -> None:
    manifest = stage.run(OPTIONS, inputs, Out(trained))
    folder = trained / manifest.actual["checkpoint"]
    embedding = TargetWeights(inputs["target"].path).embedding()
    drafter = load_drafter(folder, DrafterConfig.read(folder / "config.json"), embedding)
    head = FullHead(TargetWeights(inputs["target"].path), 1.0, None)
    walk = walk_store(drafter, StateStore(inputs["extract"].path, "eval"), 3, head=head)
    assert json.loads((trained / "walk.json").read_text()) == json.loads(json.dumps(walk.plain()))
    assert manifest.actual["accept_length"] == walk.accept_length


def test_training_learns(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert sum(lines[-1]["cross_entropy"]) < sum(lines[0]["cross_entropy"])


def test_a_frozen_head_keeps_the_targets_rows(trained: Path, inputs: dict[str, Source]) -> None:
    weights = load_file(next(trained.glob("step-*")) / "model.safetensors")
    head = TargetWeights(inputs["target"].path).head()
    assert torch.equal(weights["lm_head.weight"], head[torch.arange(1, VOCAB, 2)])


@pytest.mark.parametrize("init", ["target", "ridge", "random"])
@pytest.mark.parametrize("train_head", [False, True])
def test_every_start_trains(inputs: dict[str, Source], tmp_path: Path, init: str, train_head: bool) -> None:
    options = dataclasses.replace(OPTIONS, init=init, train_head=train_head, epochs=1)
    manifest = stage.run(options, inputs, Out(tmp_path / "run"))
    assert manifest.actual["steps"] > 0
    weights = load_file(next((tmp_path / "run").glob("step-*")) / "model.safetensors")
    moved = not torch.equal(weights["lm_head.weight"], TargetWeights(inputs["target"].path).head()[1::2])
    assert moved == train_head


def test_the_target_start_is_the_targets_last_layer_on_the_hidden_half(inputs: dict[str, Source]) -> None:
    facts = read_facts(inputs["target"].path)
    config = DrafterConfig.like_target(facts, 3, 11)
    store = StateStore(inputs["extract"].path)
    drafter, _ = stage.build(OPTIONS, config, torch.arange(1, VOCAB, 2), facts, store)
    layer = TargetWeights(inputs["target"].path).layer(1)
    q_proj = drafter.midlayer.self_attn.q_proj.weight
    assert torch.equal(q_proj[:, 16:], layer["self_attn.q_proj.weight"])
    assert not q_proj[:, :16].any()
    assert torch.equal(drafter.midlayer.hidden_norm.weight, layer["input_layernorm.weight"])


def test_a_vocabulary_of_another_target_is_refused(inputs: dict[str, Source], tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocab", torch.arange(1, 9))
    path = tmp_path / "vocab" / "vocab.safetensors"
    tensors = load_file(path)
    from safetensors.torch import save_file

    save_file({**tensors, "t2d": tensors["t2d"][:-3].clone()}, path)
    with pytest.raises(EyasError, match="another target"):
        stage.run(OPTIONS, {**inputs, "vocab": Source(tmp_path / "vocab", "w" * 32)}, Out(tmp_path / "run"))


def test_nothing_to_train_on_is_refused(inputs: dict[str, Source], tmp_path: Path) -> None:
    rows = [tiny_row([0, 0, 1, 1], torch.zeros(VOCAB, 16), name="short")]
    extract = write_extract(tmp_path / "extract", rows, rows)
    with pytest.raises(EyasError, match="0 of 1 rows"):
        stage.run(OPTIONS, {**inputs, "extract": extract}, Out(tmp_path / "run"))


def test_a_loss_that_is_no_number_stops_and_names_the_rows(inputs: dict[str, Source], tmp_path: Path) -> None:
    rows = [tiny_row([0, 0, *[1] * 9], torch.randn(VOCAB, 16), i, f"r{i}") for i in range(3)]
    rows[1].aux_TAH[4] = torch.inf
    extract = write_extract(tmp_path / "extract", rows, rows[:1])
    options = dataclasses.replace(OPTIONS, tokens_per_step=1)
    with pytest.raises(EyasError, match="no number") as caught:
        stage.run(options, {**inputs, "extract": extract}, Out(tmp_path / "run"))
    assert caught.value.record == "tiny/r1"
    assert not list((tmp_path / "run").rglob("step-*"))


def test_options_out_of_range_are_refused_with_their_name() -> None:
    with pytest.raises(EyasError) as caught:
        TrainOptions(ttt_steps=0)
    assert "training.ttt_steps" in str(caught.value)


@pytest.mark.parametrize(
    ("network", "own"),
    [
        ({"fc_norm": True, "norm_output": True}, {"fc_norm.0.weight", "fc_norm.2.weight"}),
        ({"norm_before_fc": True}, {"input_norm.weight"}),
        ({"norm_before_residual": True}, set()),
        ({"intermediate_size": 36, "num_heads": 8, "num_kv_heads": 4, "head_dim": 6}, set()),
        ({"hidden_size": 24}, {"embed_tokens.weight"}),
    ],
    ids=str,
)
def test_every_shape_trains_and_is_what_its_file_says(
    inputs: dict[str, Source], tmp_path: Path, network: dict[str, object], own: set[str]
) -> None:
    options = dataclasses.replace(
        OPTIONS, init="random", train_head=True, epochs=6, network=NetworkOptions(**network)
    )
    manifest = stage.run(options, inputs, Out(tmp_path / "run"))
    folder = tmp_path / "run" / manifest.actual["checkpoint"]
    config = DrafterConfig.read(folder / "config.json")
    assert {name: getattr(config, name) for name in network} == network
    assert manifest.actual["parameters"] == manifest.predicted["parameters"]
    assert own <= load_file(folder / "model.safetensors").keys()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    embedding = None if config.has_own_embedding else TargetWeights(inputs["target"].path).embedding()
    drafter = load_drafter(folder, config, embedding)
    walk = walk_store(drafter, StateStore(inputs["extract"].path, "eval"), 3)
    assert walk.accept_length == manifest.actual["accept_length"]


def test_a_drafter_of_another_width_trains_its_own_embedding(
    inputs: dict[str, Source], tmp_path: Path
) -> None:
    weights = []
    for epochs in (1, 2):
        options = dataclasses.replace(
            OPTIONS, init="random", train_head=True, epochs=epochs, network=NetworkOptions(hidden_size=24)
        )
        manifest = stage.run(options, inputs, Out(tmp_path / f"run-{epochs}"))
        folder = tmp_path / f"run-{epochs}" / manifest.actual["checkpoint"]
        weights.append(load_file(folder / "model.safetensors")["embed_tokens.weight"])
    assert weights[0].shape == (VOCAB, 24)
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("changes", "mend"),
    [
        ({"network": NetworkOptions(hidden_size=24), "init": "random"}, "training.train_head"),
        ({"network": NetworkOptions(hidden_size=24), "train_head": True}, "training.init"),
        ({"network": NetworkOptions(num_heads=3)}, "training.network.num_heads"),
    ],
    ids=str,
)
def test_impossible_shapes_are_refused(
    inputs: dict[str, Source], tmp_path: Path, changes: dict[str, object], mend: str
) -> None:
    with pytest.raises(EyasError) as caught:
        stage.run(dataclasses.replace(OPTIONS, **changes), inputs, Out(tmp_path / "run"))
    assert mend in caught.value.mend


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 8, "attention_factor": 1.5}
LISTS = {"short_factor": [1.0, 1.2], "long_factor": [2.0, 3.0]}
ONE_LIST = {"short_factor": [2.0, 3.0], "long_factor": [2.0, 3.0], "short_mscale": 1.5, "long_mscale": 1.5}


@pytest.mark.parametrize(
    ("scaling", "trained"),
    [(YARN, YARN), (LONGROPE | LISTS, LONGROPE | ONE_LIST), ({"rope_type": "dynamic", "factor": 2.0}, None)],
    ids=["yarn", "longrope", "dynamic"],
)
def test_the_targets_scaled_positions_are_the_drafters(
    inputs: dict[str, Source], tmp_path: Path, scaling: dict, trained: dict | None
) -> None:
    """Rows are longer than the switch of longrope, so its long factors hold, and shorter than that of dynamic."""
    import shutil

    from eyas.core.contract import target_source

    shutil.copytree(inputs["target"].path, tmp_path / "target")
    path = tmp_path / "target" / "config.json"
    fields = json.loads(path.read_text())
    fields["rope_parameters"] = {**scaling, "rope_theta": 500.0}
    path.write_text(json.dumps(fields))
    scaled = {**inputs, "target": target_source(tmp_path / "target")}
    manifest = stage.run(dataclasses.replace(OPTIONS, epochs=1), scaled, Out(tmp_path / "run"))
    config = DrafterConfig.read(tmp_path / "run" / manifest.actual["checkpoint"] / "config.json")
    assert config.rope_scaling == trained
    assert config.rope_theta == 500.0


def test_the_longest_trained_row_and_the_memory_are_in_the_manifest(
    trained: Path, inputs: dict[str, Source]
) -> None:
    manifest = stage.run(OPTIONS, inputs, Out(trained))
    assert manifest.actual["trained_length"] == max(StateStore(inputs["extract"].path).lengths)
    memory = manifest.predicted["memory"]
    assert memory["optimizer"] == 8 * manifest.actual["trained_parameters"]
    assert memory["gradients"] == 4 * manifest.actual["trained_parameters"]
