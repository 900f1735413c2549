"""`eyas export --check`: an engine's loading replayed, on Eyas's own folders, on spoiled and on foreign ones."""

from __future__ import annotations

import dataclasses
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
from eyas.core.manifest import Source
from eyas.drafter.config import DrafterConfig
from eyas.drafter.target_weights import TargetWeights
from eyas.export import vocabulary
from eyas.export.check import CheckReport, check
from eyas.export.coverage import measure
from eyas.export.layer_ids import ENGINES
from eyas.export.load import load_exported
from eyas.export.record import RECORD

CASES = Path(__file__).resolve().parents[2] / ".." / "shared" / "cases" / "inputs"
SHARED = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")

State = dict[str, Tensor]


@pytest.fixture
def exported(tmp_path: Path, target_folder: Path, trained_like: object) -> Path:
    """All four engines' folders of a drafter whose weights look trained."""
    train = toy_run.train_artefact(tmp_path / "train", trained_like)
    return toy_run.export(tmp_path / "export", train, target_folder, engines=ENGINES).path


@pytest.fixture(scope="session")
def trained_like(target_folder: Path) -> object:
    drafter = toy.chance_drafter(target_folder, seed=3)
    with torch.no_grad():  # rows of very different lengths, as training leaves them
        for name, parameter in drafter.named_parameters():
            if parameter.dim() == 2 and name != "embed_tokens.weight":
                parameter.mul_(torch.linspace(0.2, 3.0, len(parameter))[:, None])
    return drafter


def checked(folder: Path, engine: str, target: Path | None, **more: object) -> CheckReport:
    return check(folder, engine, None if target is None else read_facts(target), **more)


def rewrite(folder: Path, change: Callable[[State], State]) -> None:
    file = folder / "model.safetensors"
    state = load_file(file)
    save_file({name: tensor.contiguous() for name, tensor in change(state).items()}, file)


def reconfigure(folder: Path, change: Callable[[dict], object]) -> None:
    fields = orjson.loads((folder / "config.json").read_bytes())
    change(fields)
    (folder / "config.json").write_bytes(orjson.dumps(fields))


def foreign(folder: Path) -> Path:
    """The folder as others would have made it."""
    (folder / RECORD).unlink()
    return folder


def fates(report: CheckReport) -> dict[str, str]:
    return {line.tensor: line.fate for line in report.tensors}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_export_passes_for_its_own_engine(exported: Path, target_folder: Path, engine: str) -> None:
    report = checked(exported / engine, engine, target_folder)
    assert report.faults == []
    assert report.warnings == []
    assert report.boundaries == list(toy.BOUNDARIES)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_export_loads_back_as_the_drafter_that_was_trained(
    exported: Path, target_folder: Path, engine: str, trained_like: object
) -> None:
    embedding = TargetWeights(target_folder).embedding()
    loaded, boundaries = load_exported(exported / engine, engine, read_facts(target_folder), embedding)
    ours, theirs = trained_like.state_dict(), loaded.state_dict()
    assert boundaries == list(toy.BOUNDARIES)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_each_engine_is_given_its_own_form(exported: Path, target_folder: Path) -> None:
    states = {engine: load_file(exported / engine / "model.safetensors") for engine in ENGINES}
    assert states["trtllm"]["d2t"].dtype == torch.int32
    assert states["vllm"]["d2t"].dtype == torch.int64
    assert "layers.0.mlp.up_proj.weight" in states["speculators"]
    copy = states["speculators"]["embed_tokens.weight"]
    assert torch.equal(copy, TargetWeights(target_folder).embedding())
    assert not any("embed_tokens" in name for name in states["vllm"] | states["sglang"] | states["trtllm"])
    eagle = orjson.loads((exported / "trtllm" / "config.json").read_bytes())["eagle_config"]
    assert eagle["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2], "TensorRT-LLM takes outputs of layers"
    assert "eagle3_layers_to_capture: [0, 1, 2]" in (exported / "trtllm" / "README.md").read_text()
    fields = orjson.loads((exported / "speculators" / "config.json").read_bytes())
    assert fields["norm_before_residual"] is False, "the format's default is true"


def test_the_fate_of_each_tensor_is_listed(exported: Path, target_folder: Path) -> None:
    listed = fates(checked(exported / "vllm", "vllm", target_folder))
    assert listed["fc.weight"] == "used"
    assert listed["embed_tokens.weight"] == "shared"
    assert listed["t2d"] == "ignored"


RENAMED = [
    ("sglang", lambda n: n.replace("midlayer.", "layers.0."), "ignored", "missing"),
    ("vllm", lambda n: n if n == "d2t" else f"model.{n}", "refused", "missing"),
    ("trtllm", lambda n: n.replace("midlayer.", "draft.midlayer."), "ignored", "missing"),
    ("speculators", lambda n: n.replace("layers.0.", "midlayer."), "refused", "missing"),
    ("sglang", lambda n: f"draft_model._orig_mod.{n}", "ignored", "missing"),
]


@pytest.mark.parametrize(("engine", "rename", "fate", "absence"), RENAMED)
def test_renamed_keys_are_seen(
    exported: Path, target_folder: Path, engine: str, rename: Callable, fate: str, absence: str
) -> None:
    """C043 and the reference run: SGLang drops such a tensor without a word, accept length about 1."""
    rewrite(exported / engine, lambda state: {rename(name): t for name, t in state.items()})
    report = checked(exported / engine, engine, target_folder)
    assert {fate, absence} <= {line.fate for line in report.tensors}
    assert any(absence in fault for fault in report.faults)


@pytest.mark.parametrize(
    ("engine", "rename"),
    [("vllm", "layers.0."), ("trtllm", "layers.0.")],
)
def test_names_that_an_engine_translates_pass(
    exported: Path, target_folder: Path, engine: str, rename: str
) -> None:
    rewrite(exported / engine, lambda s: {n.replace("midlayer.", rename): t for n, t in s.items()})
    assert checked(exported / engine, engine, target_folder).faults == []


def test_shifted_layer_ids_are_a_fault_of_an_export_and_a_warning_of_a_foreign_folder(
    exported: Path, tmp_path: Path, trained_like: object
) -> None:
    target = toy.write_target(tmp_path / "deep", num_hidden_layers=8)  # its usual boundaries are 2, 4, 5
    train = toy_run.train_artefact(tmp_path / "train8", trained_like, boundaries=[2, 4, 5])
    folder = toy_run.export(tmp_path / "out", train, target, engines=("vllm",)).path / "vllm"
    assert checked(folder, "vllm", target).warnings == []
    reconfigure(folder, lambda f: f["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[1, 3, 4]))
    report = checked(folder, "vllm", target)
    assert any("[1, 3, 4], the drafter was trained on [2, 4, 5]" in fault for fault in report.faults)
    report = checked(foreign(folder), "vllm", target)
    assert report.faults == []
    assert any("another engine's numbers" in warning for warning in report.warnings)
    assert not report.passed(strict=True)


@pytest.mark.parametrize("flag", ["norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"])
def test_a_dropped_norm_flag_is_seen(tmp_path: Path, target_folder: Path, flag: str, exported: Path) -> None:
    drafter = toy.chance_drafter(target_folder, **{flag: True})
    train = toy_run.train_artefact(tmp_path / "flagged", drafter)
    folder = toy_run.export(tmp_path / "out", train, target_folder, engines=("vllm",)).path / "vllm"
    reconfigure(folder, lambda fields: fields.pop(flag))
    assert any(flag in fault or "norm" in fault for fault in checked(folder, "vllm", target_folder).faults)
    reconfigure(exported / "vllm", lambda fields: fields.pop(flag))
    assert any("was dropped" in f for f in checked(exported / "vllm", "vllm", target_folder).faults)


def test_speculators_takes_an_absent_residual_flag_for_true(exported: Path, target_folder: Path) -> None:
    folder = exported / "speculators"
    reconfigure(folder, lambda fields: fields.pop("norm_before_residual"))
    assert any(
        "norm_before_residual as true" in fault
        for fault in checked(folder, "speculators", target_folder).faults
    )


def shuffled_offsets(state: State) -> State:
    order = torch.randperm(len(state["d2t"]), generator=torch.Generator().manual_seed(0))
    return {**state, "d2t": state["d2t"][order]}


def shuffled_ids(state: State) -> State:
    ids = state["d2t"] + torch.arange(len(state["d2t"]))
    return {**state, "d2t": ids.flip(0) - torch.arange(len(ids))}


@pytest.mark.parametrize("shuffle", [shuffled_offsets, shuffled_ids])
def test_a_shuffled_map_is_seen(exported: Path, target_folder: Path, shuffle: Callable) -> None:
    rewrite(exported / "vllm", shuffle)
    assert any("d2t" in fault for fault in checked(exported / "vllm", "vllm", target_folder).faults)


def test_absolute_ids_stored_as_offsets_are_seen(exported: Path, target_folder: Path) -> None:
    rewrite(exported / "vllm", lambda state: {**state, "d2t": toy.DRAFT_IDS.clone()})
    assert any("absolute ids" in fault for fault in checked(exported / "vllm", "vllm", target_folder).faults)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reduced_head_that_is_missing_is_a_fault(exported: Path, target_folder: Path, engine: str) -> None:
    """C043: the engine drafts with a head of random weights; the server looks healthy."""
    rewrite(exported / engine, lambda s: {n: t for n, t in s.items() if n != "lm_head.weight"})
    report = checked(exported / engine, engine, target_folder)
    assert any("lm_head.weight is missing" in fault for fault in report.faults)


def test_a_random_embedding_is_a_fault_for_vllm_and_overridden_by_sglang(
    exported: Path, target_folder: Path
) -> None:
    """C043: the converter saved a fresh model's embedding; one engine uses it, the other replaces it."""
    for engine in ("vllm", "sglang"):
        rewrite(exported / engine, lambda s: {**s, "embed_tokens.weight": torch.randn(toy.VOCAB, 32)})
    vllm = checked(exported / "vllm", "vllm", None)
    assert any("embed_tokens.weight is random" in fault for fault in vllm.faults)
    vllm = checked(exported / "vllm", "vllm", target_folder)
    assert any("is not the target's" in fault for fault in vllm.faults)
    sglang = checked(exported / "sglang", "sglang", target_folder)
    assert sglang.faults == []
    assert fates(sglang)["embed_tokens.weight"] == "shared"


def test_a_random_head_is_a_fault(exported: Path, target_folder: Path) -> None:
    shape = (len(toy.DRAFT_IDS), 32)
    rewrite(exported / "vllm", lambda s: {**s, "lm_head.weight": torch.randn(shape) * 0.02})
    report = checked(exported / "vllm", "vllm", target_folder)
    assert any("lm_head.weight is random" in fault for fault in report.faults)


@pytest.mark.parametrize(
    ("engine", "wrong"), [("vllm", "eagle"), ("sglang", "EAGLE"), ("speculators", "draft_model")]
)
def test_the_older_methods_name_is_refused_with_the_reason(
    exported: Path, target_folder: Path, engine: str, wrong: str
) -> None:
    """C043: EAGLE-3 served under EAGLE runs without its fused states, accept length exactly 1.00."""
    report = checked(exported / engine, engine, target_folder, method=wrong)
    assert any("without the target's fused states" in fault for fault in report.faults)


def test_a_config_that_names_another_class_is_a_fault(exported: Path, target_folder: Path) -> None:
    for engine, given in (("vllm", "EagleLlamaForCausalLM"), ("sglang", "LlamaForCausalLM")):
        reconfigure(exported / engine, lambda fields, given=given: fields.update(architectures=[given]))
        assert any(given in f for f in checked(exported / engine, engine, target_folder).faults)


def test_a_kind_of_drafter_that_eyas_does_not_know_is_named(exported: Path, target_folder: Path) -> None:
    folder = foreign(exported / "sglang")
    reconfigure(folder, lambda fields: fields.update(architectures=["Eagle3DeepseekV2ForCausalLM"]))
    assert any("latent attention" in fault for fault in checked(folder, "sglang", target_folder).faults)


def test_a_capped_length_and_lost_scaling_are_faults(exported: Path, target_folder: Path) -> None:
    """C045."""
    reconfigure(exported / "vllm", lambda fields: fields.update(max_position_embeddings=256, rope_theta=1.0))
    faults = checked(exported / "vllm", "vllm", target_folder).faults
    assert any("max_position_embeddings is 256" in fault for fault in faults)
    assert any("rope_theta" in fault for fault in faults)


def test_a_number_type_that_is_not_the_stored_one_is_a_fault(exported: Path, target_folder: Path) -> None:
    reconfigure(exported / "vllm", lambda fields: fields.update(torch_dtype="bfloat16"))
    assert any("stored is float32" in f for f in checked(exported / "vllm", "vllm", target_folder).faults)


def test_a_full_vocabulary_has_no_map_and_passes(tmp_path: Path, target_folder: Path) -> None:
    """vLLM has no parameter for a map then and would not start with one."""
    from eyas.drafter.network import Drafter

    drafter = Drafter(dataclasses.replace(toy.toy_config(target_folder), draft_vocab_size=toy.VOCAB))
    drafter.share_embedding(TargetWeights(target_folder).embedding())
    drafter.set_vocabulary(torch.arange(toy.VOCAB))
    train = toy_run.train_artefact(tmp_path / "train", drafter)
    for engine in ENGINES:
        folder = toy_run.export(tmp_path / engine, train, target_folder, engines=(engine,)).path / engine
        state = load_file(folder / "model.safetensors")
        assert "d2t" not in state
        report = checked(folder, engine, target_folder)
        assert not any("d2t" in text for text in report.faults + report.warnings)
        loaded, _ = load_exported(folder, engine, read_facts(target_folder), drafter.embed_tokens.weight)
        assert torch.equal(loaded.target_ids_R, torch.arange(toy.VOCAB))
    save_file({**state, "d2t": torch.zeros(toy.VOCAB, dtype=torch.int64)}, folder / "model.safetensors")
    assert any("no place for a map" in fault for fault in checked(folder, "vllm", target_folder).faults)


@SHARED
def test_coverage_of_the_reported_map(exported: Path, target_folder: Path) -> None:
    """C033: the first-N slice covers 17 of 30 supervised tokens; without counts it is a loud warning."""
    case = orjson.loads((CASES / "C033.checkpoint_cases.json").read_bytes())[2]
    size = len(toy.DRAFT_IDS)
    counts = torch.zeros(toy.VOCAB, dtype=torch.int64)
    low, high = torch.tensor(case["token_counts"]).split(case["draft_vocab"])
    counts[: len(low)], counts[-len(high) :] = low, high
    first = torch.zeros(toy.VOCAB, dtype=torch.bool)
    first[:size] = True
    maps = {"d2t": torch.zeros(size, dtype=torch.int64), "t2d": first}
    rewrite(exported / "vllm", lambda state: {**state, **maps})
    unknown = checked(exported / "vllm", "vllm", target_folder)
    assert any("lost map" in warning for warning in unknown.warnings)
    assert unknown.passed(strict=False)
    assert not unknown.passed(strict=True)
    report = checked(exported / "vllm", "vllm", target_folder, counts_V=counts)
    assert any("coverage is 17/30, best possible is 30/30" in fault for fault in report.faults)


@SHARED
def test_the_maps_of_the_expected_vocabulary_lead_to_its_ids(target_folder: Path) -> None:
    """C035: offsets, a table as long as the head, a round trip for each draft id."""
    expected = orjson.loads((CASES / "C035.expected.json").read_bytes())
    counted = orjson.loads((CASES / "C035.counts.json").read_bytes())
    sizes = {"vocab_size": counted["target_vocab_in_config"], "draft_vocab_size": counted["draft_vocab"]}
    config = DrafterConfig(**{**vars(toy.toy_config(target_folder)), **sizes})
    offsets = torch.tensor(expected["d2t_as_difference"])
    maps = vocabulary.with_maps({"d2t": offsets}, config, Path("model.safetensors"))
    ids = (maps["d2t"] + torch.arange(len(offsets))).tolist()
    assert ids == expected["selected_target_ids"], "for each draft id k the target id is k + d2t[k]"
    assert len(maps["t2d"]) == expected["t2d_length"]
    assert maps["t2d"].nonzero().flatten().tolist() == expected["t2d_true_at"]
    wrong = torch.tensor(expected["wrong_variants"]["d2t_holding_absolute_ids"])
    with pytest.raises(EyasError, match=r"d2t does not give rising target ids|t2d does not mark"):
        vocabulary.with_maps({"d2t": wrong, "t2d": maps["t2d"]}, config, Path("model.safetensors"))


def test_a_foreign_folder_without_explicit_fields_is_read_as_the_engine_guesses(
    exported: Path, target_folder: Path
) -> None:
    folder = foreign(exported / "vllm")
    for name in (
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
        "eagle_config",
        "head_dim",
    ):
        reconfigure(folder, lambda fields, name=name: fields.pop(name))
    report = checked(folder, "vllm", target_folder)
    assert report.faults == []
    assert report.boundaries == list(read_facts(target_folder).default_boundaries)
    assert sum("is not written" in warning for warning in report.warnings) == 4
    assert any("no layer ids" in warning for warning in report.warnings)
    assert not report.passed(strict=True)


def test_a_pickled_foreign_drafter_is_read_without_unpickling_code(
    exported: Path, target_folder: Path
) -> None:
    folder = foreign(exported / "vllm")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert checked(folder, "vllm", target_folder).faults == []


def test_the_counts_of_the_vocab_artefact_are_held_against_the_map(
    tmp_path: Path, train: Source, target_folder: Path
) -> None:
    from eyas.core.manifest import read_manifest
    from eyas.export import stage
    from eyas.export.options import ExportOptions

    counts = torch.zeros(toy.VOCAB, dtype=torch.int64)
    counts[toy.DRAFT_IDS] = 5
    inputs = {"train": train, "target": toy_run.target_source(target_folder)}

    def run(name: str, counts: Tensor) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        save_file({"counts": counts}, folder / "vocab.safetensors")
        given = {**inputs, "vocab": Source(folder, name)}
        stage.run(ExportOptions(engines=("vllm",)), given, toy_run.Out(tmp_path / f"out-{name}"))
        return tmp_path / f"out-{name}"

    assert read_manifest(run("good", counts)).actual["coverage"] == 1.0
    with pytest.raises(EyasError, match="not the one that these counts give"):
        run("bad", 900 * (counts == 0) + counts)


def test_ids_that_no_drafter_may_emit_do_not_count_as_missed() -> None:
    """Rows of the head beyond the tokenizer's length may occur as labels, and no draft vocabulary can hold them."""
    counts = torch.tensor([4, 0, 3, 2, 9, 9])
    chosen = torch.tensor([0, 2])
    assert not measure(chosen, counts).is_enough
    coverage = measure(chosen, counts, tokenizer_length=4)
    assert (coverage.hit, coverage.best, coverage.all) == (7, 7, 27)


def test_a_map_that_holds_the_stop_tokens_is_compared_with_the_best_that_holds_them() -> None:
    counts = torch.tensor([5, 4, 3, 0])
    coverage = measure(torch.tensor([0, 3]), counts, stop_ids=(3,))
    assert (coverage.hit, coverage.best) == (5, 5), "every drafter must be able to end an answer"
