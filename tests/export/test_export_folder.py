"""What stands in an exported folder, for each engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orjson
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import toy
import toy_run
from eyas.core.contract import read_facts
from eyas.core.errors import EyasError
from eyas.core.manifest import Source, read_manifest, spoiled
from eyas.drafter.config import DrafterConfig
from eyas.drafter.network import Drafter
from eyas.drafter.positions import settled
from eyas.drafter.rope import Rotary
from eyas.drafter.target_weights import TargetWeights
from eyas.export.check import check
from eyas.export.load import load_exported

ENGINES = ("sglang", "vllm")

NAMES = {
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
    *(f"midlayer.{n}.weight" for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")),
    *(f"midlayer.self_attn.{n}_proj.weight" for n in "qkvo"),
    *(f"midlayer.mlp.{n}_proj.weight" for n in ("gate", "up", "down")),
}
"""What SGLang and vLLM read for a drafter that shares the target's embedding."""

SCALED = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
SCALED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.fixture
def exported(tmp_path: Path, train: Source, target_folder: Path) -> Path:
    return toy_run.export(tmp_path / "export", train, target_folder).path


def config(folder: Path) -> dict:
    return orjson.loads((folder / "config.json").read_bytes())


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tensors_are_exactly_those_that_the_engine_reads(exported: Path, engine: str) -> None:
    state = load_file(exported / engine / "model.safetensors")
    assert set(state) == NAMES, "another name is dropped by SGLang in silence and refused by vLLM"
    assert state["d2t"].dtype == torch.int64
    assert state["t2d"].dtype == torch.bool


@pytest.mark.parametrize("engine", ENGINES)
def test_the_maps_hold_offsets_and_marks(exported: Path, engine: str) -> None:
    state = load_file(exported / engine / "model.safetensors")
    assert torch.equal(state["d2t"] + torch.arange(len(toy.DRAFT_IDS)), toy.DRAFT_IDS)
    assert len(state["t2d"]) == toy.VOCAB
    assert torch.equal(state["t2d"].nonzero().flatten(), toy.DRAFT_IDS)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_export_reads_back_bit_for_bit(
    exported: Path, engine: str, drafter: Drafter, target_folder: Path
) -> None:
    embedding = TargetWeights(target_folder).embedding()
    loaded, boundaries = load_exported(exported / engine, engine, read_facts(target_folder), embedding)
    ours, theirs = drafter.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert boundaries == list(toy.BOUNDARIES)
    assert loaded.config == drafter.config


@pytest.mark.parametrize(("engine", "ids"), [("vllm", [1, 2, 3]), ("sglang", [0, 1, 2])])
def test_layer_ids_are_in_the_engines_own_numbers(exported: Path, engine: str, ids: list[int]) -> None:
    eagle = config(exported / engine)["eagle_config"]
    assert eagle == {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_config_states_all_that_engines_guess_otherwise(exported: Path, engine: str) -> None:
    fields = config(exported / engine)
    assert fields["architectures"] == ["LlamaForCausalLMEagle3"]
    assert fields["tie_word_embeddings"] is False
    assert fields["draft_vocab_size"] == len(toy.DRAFT_IDS)
    assert fields["vocab_size"] == toy.VOCAB
    assert fields["num_hidden_layers"] == 1
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert [fields[flag] for flag in flags] == [False] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_type_declared_is_the_one_stored(
    tmp_path: Path, target_folder: Path, dtype: torch.dtype
) -> None:
    drafter = toy.chance_drafter(target_folder).to(dtype)
    folder = toy_run.export(
        tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target_folder
    ).path
    for engine in ENGINES:
        stored = load_file(folder / engine / "model.safetensors")["fc.weight"].dtype
        assert stored == dtype == getattr(torch, config(folder / engine)["torch_dtype"])


@pytest.mark.parametrize("engine", ENGINES)
def test_positions_are_the_targets_at_every_probed_row(tmp_path: Path, engine: str) -> None:
    """C045: a target with scaled positions and a limit of 131072, trained on 4096 tokens at most."""
    limit = 131072
    target = toy.write_target(tmp_path / "target", rope_parameters=SCALED, max_position_embeddings=limit)
    train = toy_run.train_artefact(tmp_path / "train", toy.chance_drafter(target))
    fields = config(toy_run.export(tmp_path / "out", train, target).path / engine)
    assert fields["max_position_embeddings"] == limit, "a shorter limit reads rubbish on long prompts"
    assert fields["rope_theta"] == 500000.0
    assert fields["rope_scaling"] == {k: v for k, v in SCALED.items() if k != "rope_theta"}
    positions = torch.tensor([[0, 4095, 9000, 100000]])
    tables = [
        LlamaRotaryEmbedding(LlamaConfig(**of))(torch.zeros(1), positions)
        for of in (orjson.loads((target / "config.json").read_bytes()), fields)
    ]
    for ours, theirs in zip(*tables, strict=True):
        assert torch.equal(ours, theirs)


LONGROPE = {"rope_type": "longrope", "rope_theta": 1000.0, "original_max_position_embeddings": 512}
LONGROPE |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 3.0, 4.0]}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}
PART = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize("longest", [100, 600])
@pytest.mark.parametrize(("rope", "limit"), [(LONGROPE, 4096), (DYNAMIC, 512)], ids=["longrope", "dynamic"])
def test_an_engine_is_left_no_choice_of_frequencies_by_length(
    tmp_path: Path, rope: dict, limit: int, longest: int
) -> None:
    """transformers switches by length and reads the config as it is; so would vLLM and SGLang, each in its own way."""
    target = toy.write_target(tmp_path / "target", rope_parameters=rope, max_position_embeddings=limit)
    facts = read_facts(target)
    shape = settled(DrafterConfig.like_target(facts, 3, len(toy.DRAFT_IDS)), longest)
    positions = ("rope_theta", "rope_scaling", "max_position_embeddings")
    drafter = toy.chance_drafter(target, **{name: getattr(shape, name) for name in positions})
    exported = toy_run.export(tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target).path
    trained_cos, trained_sin = Rotary(shape).table(2000, torch.float32)
    for engine in ENGINES:
        fields = config(exported / engine)
        assert fields["max_position_embeddings"] >= 4 * 512, "the target is served up to here"
        for length in (50, 2000):
            embedding = LlamaRotaryEmbedding(LlamaConfig(**fields))
            cos, sin = embedding(torch.zeros(1), torch.arange(length).unsqueeze(0))
            assert torch.equal(cos[0], trained_cos[:length])
            assert torch.equal(sin[0], trained_sin[:length])
        assert not [fault for fault in check(exported / engine, engine, facts).faults if "rope" in fault]


def test_a_part_of_the_head_is_written_where_each_engine_looks(tmp_path: Path) -> None:
    target = toy.write_target(tmp_path / "target", rope_parameters=PART)
    facts = read_facts(target)
    assert facts.rope_scaling == {"rope_type": "default", "partial_rotary_factor": 0.5}
    drafter = toy.chance_drafter(target, rope_scaling=facts.rope_scaling)
    exported = toy_run.export(tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target).path
    for engine in ENGINES:
        fields = config(exported / engine)
        assert fields["rope_scaling"]["partial_rotary_factor"] == 0.5, "vLLM would turn the whole head"
        assert fields["partial_rotary_factor"] == 0.5, "SGLang would turn the whole head"


def test_a_drafter_of_other_positions_than_the_target_is_refused(tmp_path: Path, target_folder: Path) -> None:
    drafter = toy.chance_drafter(target_folder, rope_theta=10000.0)
    with pytest.raises(EyasError, match="rope_theta is not the target's"):
        toy_run.export(tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target_folder)


def test_a_narrower_drafter_brings_its_own_embedding(tmp_path: Path, target_folder: Path) -> None:
    drafter = toy.chance_drafter(target_folder, hidden_size=16)
    folder = toy_run.export(
        tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target_folder
    ).path
    state = load_file(folder / "vllm" / "model.safetensors")
    assert torch.equal(state["embed_tokens.weight"], drafter.embed_tokens.weight)
    assert config(folder / "vllm")["target_hidden_size"] == 32
    loaded, _ = load_exported(folder / "vllm", "vllm", read_facts(target_folder), None)
    assert torch.equal(loaded.embed_tokens.weight, drafter.embed_tokens.weight)


def test_two_exports_are_byte_identical(tmp_path: Path, train: Source, target_folder: Path) -> None:
    one, two = (toy_run.export(tmp_path / name, train, target_folder).path for name in ("one", "two"))
    first, second = read_manifest(one), read_manifest(two)
    assert first.outputs == second.outputs
    assert first.actual == second.actual
    assert len(first.outputs) == 8
    assert not spoiled(one, first)


def test_the_manifest_records_both_numberings(exported: Path) -> None:
    actual = read_manifest(exported).actual
    assert actual["boundaries"] == [1, 2, 3]
    assert actual["layer_ids"] == {"sglang": [0, 1, 2], "vllm": [1, 2, 3]}
    assert actual["warnings"] == []


def test_only_the_named_engines_are_written(tmp_path: Path, train: Source, target_folder: Path) -> None:
    folder = toy_run.export(tmp_path / "out", train, target_folder, engines=("vllm",)).path
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["vllm"]


def test_an_unknown_engine_is_refused_by_name(tmp_path: Path, train: Source, target_folder: Path) -> None:
    with pytest.raises(EyasError, match="no such engine") as caught:
        toy_run.export(tmp_path / "out", train, target_folder, engines=("tgi",))
    assert caught.value.found == "tgi"


@pytest.mark.parametrize(
    ("engine", "method"), [("vllm", '"method": "eagle3"'), ("sglang", "--speculative-algorithm EAGLE3")]
)
def test_the_card_names_the_method_and_what_was_measured(exported: Path, engine: str, method: str) -> None:
    card = (exported / engine / "README.md").read_text()
    assert method in card, "served under another method name the accept length is 1.00 without an error"
    assert "Accept length 1.500" in card
    assert card.startswith("---\nlicense: other\n")
    assert str(exported) not in card


def test_three_drafts_are_three_for_both_engines(exported: Path) -> None:
    """C046: SGLang's flag counts the target's own token too."""
    assert '"num_speculative_tokens": 3' in (exported / "vllm" / "README.md").read_text()
    card = (exported / "sglang" / "README.md").read_text()
    assert "--speculative-num-steps 3" in card
    assert "--speculative-num-draft-tokens 4" in card


def test_sglang_is_refused_a_drafter_whose_flag_it_does_not_know(tmp_path: Path, target_folder: Path) -> None:
    drafter = toy.chance_drafter(target_folder, norm_before_residual=True)
    train = toy_run.train_artefact(tmp_path / "train", drafter)
    with pytest.raises(EyasError, match="norm_before_residual"):
        toy_run.export(tmp_path / "both", train, target_folder)
    toy_run.export(tmp_path / "one", train, target_folder, engines=("vllm",))


def test_flags_that_older_builds_ignore_are_warned_of(
    tmp_path: Path, target_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = toy.chance_drafter(target_folder, norm_output=True, fc_norm=True)
    folder = toy_run.export(
        tmp_path / "out", toy_run.train_artefact(tmp_path / "t", drafter), target_folder
    ).path
    assert any("fc_norm, norm_output" in warning for warning in read_manifest(folder).actual["warnings"])
    assert "older builds ignore" in capsys.readouterr().err
    loaded, _ = load_exported(
        folder / "sglang", "sglang", read_facts(target_folder), TargetWeights(target_folder).embedding()
    )
    assert loaded.config == drafter.config


def test_the_weights_file_says_its_format(exported: Path) -> None:
    with safe_open(exported / "vllm" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_facts_of_the_target_are_what_the_config_repeats(exported: Path, target_folder: Path) -> None:
    facts = dataclasses.asdict(read_facts(target_folder))
    fields = config(exported / "vllm")
    for name in ("vocab_size", "rope_theta", "rope_scaling", "max_position_embeddings", "rms_norm_eps"):
        assert fields[name] == facts[name]
