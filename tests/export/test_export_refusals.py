"""Checkpoints and folders that an engine would load without a word and draft badly with (C033, C043)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import toy
import toy_run
from eyas.core.contract import read_facts
from eyas.core.errors import EyasError
from eyas.core.manifest import Source, read_manifest
from eyas.drafter.config import DrafterConfig
from eyas.drafter.network import Drafter
from eyas.drafter.target_weights import TargetWeights
from eyas.export import vocabulary
from eyas.export.load import load_exported

CASES = Path(__file__).resolve().parents[2] / ".." / "shared" / "cases" / "inputs"

State = dict[str, Tensor]


def changed(train: Source, change: Callable[[State], State]) -> Source:
    """The checkpoint's weights rewritten."""
    path = train.path / "step-000007" / "model.safetensors"
    state = load_file(path)
    path.unlink()
    save_file({name: tensor.contiguous() for name, tensor in change(state).items()}, path)
    return train


def test_wrapped_names_are_unwrapped(tmp_path: Path, train: Source, target_folder: Path) -> None:
    """C043: `draft_model._orig_mod.` in front of every name."""
    plain = toy_run.export(tmp_path / "plain", train, target_folder).path
    wrap = changed(train, lambda state: {f"draft_model._orig_mod.{name}": t for name, t in state.items()})
    wrapped = toy_run.export(tmp_path / "wrapped", wrap, target_folder).path
    for engine in ("vllm", "sglang"):
        file = f"{engine}/model.safetensors"
        assert (plain / file).read_bytes() == (wrapped / file).read_bytes()


def test_two_tensors_of_one_name_are_refused(tmp_path: Path, train: Source, target_folder: Path) -> None:
    twice = changed(train, lambda state: {**state, "module.fc.weight": state["fc.weight"] + 1})
    with pytest.raises(EyasError, match="one name without their wrappers"):
        toy_run.export(tmp_path / "out", twice, target_folder)


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path, train: Source, target_folder: Path) -> None:
    """C043: such a drafter was served with random weights, at an accept length of 1.00."""
    headless = changed(train, lambda state: {k: v for k, v in state.items() if k != "lm_head.weight"})
    with pytest.raises(EyasError, match="has no head"):
        toy_run.export(tmp_path / "out", headless, target_folder)


@pytest.mark.parametrize("name", ["fc.weight", "midlayer.self_attn.q_proj.weight", "norm.weight"])
def test_a_missing_tensor_is_refused_by_name(
    tmp_path: Path, train: Source, target_folder: Path, name: str
) -> None:
    holed = changed(train, lambda state: {k: v for k, v in state.items() if k != name})
    with pytest.raises(EyasError, match="not those that an engine reads") as caught:
        toy_run.export(tmp_path / "out", holed, target_folder)
    assert name in caught.value.found


def test_a_tensor_that_no_engine_reads_is_refused(tmp_path: Path, train: Source, target_folder: Path) -> None:
    folder = toy_run.export(tmp_path / "good", train, target_folder).path / "vllm"
    extra = {**load_file(folder / "model.safetensors"), "midlayer.gate.weight": torch.ones(2)}
    save_file(extra, folder / "model.safetensors")
    with pytest.raises(EyasError, match=r"not those that an engine reads"):
        load_exported(folder, "vllm", read_facts(target_folder), TargetWeights(target_folder).embedding())
    with pytest.raises(EyasError, match=r"not those that an engine reads"):
        toy_run.export(
            tmp_path / "out", changed(train, lambda state: {**state, "x": torch.ones(2)}), target_folder
        )


def test_an_embedding_that_is_not_the_targets_is_refused(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    """C043: the exporter's random embedding is used by vLLM and replaced by SGLang."""
    random = changed(train, lambda state: {**state, "embed_tokens.weight": torch.randn(toy.VOCAB, 32)})
    with pytest.raises(EyasError, match="an embedding that is not the target's"):
        toy_run.export(tmp_path / "out", random, target_folder)


def test_the_targets_own_embedding_is_left_out(tmp_path: Path, train: Source, target_folder: Path) -> None:
    embedding = TargetWeights(target_folder).embedding()
    full = changed(train, lambda state: {**state, "embed_tokens.weight": embedding.clone()})
    folder = toy_run.export(tmp_path / "out", full, target_folder).path
    assert "embed_tokens.weight" not in load_file(folder / "vllm" / "model.safetensors")


def test_weights_of_two_number_types_are_refused(tmp_path: Path, train: Source, target_folder: Path) -> None:
    mixed = changed(train, lambda state: {**state, "fc.weight": state["fc.weight"].bfloat16()})
    with pytest.raises(EyasError, match="several number types"):
        toy_run.export(tmp_path / "out", mixed, target_folder)


def test_absolute_ids_stored_as_offsets_are_refused(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    absolute = changed(train, lambda state: {**state, "d2t": toy.DRAFT_IDS.clone()})
    with pytest.raises(EyasError, match="d2t does not give rising target ids"):
        toy_run.export(tmp_path / "out", absolute, target_folder)


def test_marks_that_contradict_the_map_are_refused(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    other = changed(train, lambda state: {**state, "t2d": ~state["t2d"]})
    with pytest.raises(EyasError, match="t2d does not mark"):
        toy_run.export(tmp_path / "out", other, target_folder)


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
def test_maps_of_the_reported_checkpoints(target_folder: Path) -> None:
    """C033: refused without a map, accepted with one or with the full vocabulary, warned of as first ids."""
    verdicts = {}
    for case in orjson.loads((CASES / "C033.checkpoint_cases.json").read_bytes()):
        sizes = {"vocab_size": case["target_vocab"], "draft_vocab_size": case["draft_vocab"]}
        config = DrafterConfig(**{**vars(toy.toy_config(target_folder)), **sizes})
        state = {name: torch.tensor(case[name]) for name in ("d2t", "t2d") if name in case}
        try:
            state = vocabulary.with_maps(state, config, Path("model.safetensors"))
        except EyasError as error:
            verdicts[case["name"]] = error.what
        else:
            verdicts[case["name"]] = (
                vocabulary.suspicion(state, config)
                or (state["d2t"] + torch.arange(len(state["d2t"]))).tolist()
            )
    refused, mapped, first, full = verdicts.values()
    assert refused == "the draft vocabulary is reduced but the file holds no map"
    assert mapped == [1, 3, 4, 6]
    assert "first 4 target ids" in first
    assert full == list(range(8))


def test_a_map_of_first_ids_is_warned_of_in_the_manifest(
    tmp_path: Path, target_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = toy.chance_drafter(target_folder)
    drafter.set_vocabulary(torch.arange(len(toy.DRAFT_IDS)))
    folder = toy_run.export(
        tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target_folder
    ).path
    assert "lost map" in read_manifest(folder).actual["warnings"][0]
    assert "lost map" in capsys.readouterr().err


def test_the_drafter_of_another_target_is_refused(tmp_path: Path, train: Source) -> None:
    other = toy.write_target(tmp_path / "other", vocab_size=toy.VOCAB + 8)
    with pytest.raises(EyasError, match="vocab_size is not the target's"):
        toy_run.export(tmp_path / "out", train, other)


def test_a_train_artefact_without_a_checkpoint_is_refused(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    shutil.rmtree(train.path / "step-000007")
    with pytest.raises(EyasError, match="no checkpoint is there"):
        toy_run.export(tmp_path / "out", train, target_folder)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "rename",
    [
        lambda name: f"model.{name}",
        lambda name: f"draft_model._orig_mod.{name}",
        lambda name: name.replace("midlayer.", "layers.0."),
    ],
    ids=["model.", "wrapped", "layers.0."],
)
def test_the_loader_takes_no_renamed_tensor(
    tmp_path: Path, train: Source, target_folder: Path, engine: str, rename: Callable[[str], str]
) -> None:
    folder = toy_run.export(tmp_path / "out", train, target_folder).path / engine
    file = folder / "model.safetensors"
    state = load_file(file)
    save_file({rename(name): tensor for name, tensor in state.items()}, file)
    with pytest.raises(EyasError):
        load_exported(folder, engine, read_facts(target_folder), TargetWeights(target_folder).embedding())


def test_the_loader_takes_no_config_that_an_engine_reads_otherwise(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    folder = toy_run.export(tmp_path / "out", train, target_folder).path / "vllm"
    fields = orjson.loads((folder / "config.json").read_bytes())
    for broken in (
        {**fields, "architectures": ["LlamaForCausalLM"]},
        {**fields, "tie_word_embeddings": True},
        {name: value for name, value in fields.items() if name != "norm_output"},
        {**fields, "eagle_config": {}},
    ):
        (folder / "config.json").write_bytes(orjson.dumps(broken))
        with pytest.raises(EyasError):
            load_exported(folder, "vllm", read_facts(target_folder), None)


def test_reading_the_other_engines_ids_gives_other_boundaries(
    tmp_path: Path, train: Source, target_folder: Path, drafter: Drafter
) -> None:
    """One list of ids cannot suit both engines: the drafter would read states one layer off."""
    folder = toy_run.export(tmp_path / "out", train, target_folder).path / "sglang"
    embedding = TargetWeights(target_folder).embedding()
    _, boundaries = load_exported(folder, "vllm", read_facts(target_folder), embedding)
    assert boundaries == [b - 1 for b in toy.BOUNDARIES]
