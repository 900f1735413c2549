"""Drafters of Eyas and of other tools as a start: the same weights under every name, and refusals that say why."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.core.artefact import Out
from eyas.core.errors import EyasError
from eyas.core.manifest import Source
from eyas.drafter import stage
from eyas.drafter.checkpoint import Position, save_checkpoint
from eyas.drafter.importers import read_drafter, start_from
from eyas.drafter.network import Drafter
from eyas.drafter.options import NetworkOptions, TrainOptions
from eyas.drafter.start import drafter_source
from eyas.drafter.target_weights import TargetWeights
from tiny import VOCAB, tiny_config, tiny_drafter, train_inputs

OPTIONS = TrainOptions(
    ttt_steps=2, epochs=1, tokens_per_step=30, warmup_steps=3, threads=1, tracker="none", learning_rate=1e-9
)
PLAIN = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 16,
    "vocab_size": VOCAB,
    "draft_vocab_size": 11,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
}
SPECULATORS = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"hidden_size": 16},
    "norm_before_residual": False,
}


def trained_drafter() -> Drafter:
    """The vocabulary of tiny.train_inputs: odd ids."""
    drafter = tiny_drafter(3, torch.float32)
    drafter.set_vocabulary(torch.arange(1, VOCAB, 2))
    return drafter


def exported(drafter: Drafter) -> dict[str, torch.Tensor]:
    return {name: tensor.contiguous() for name, tensor in drafter.exported_state().items()}


def write(folder: Path, form: str, drafter: Drafter) -> Path:
    """The drafter as that tool writes it."""
    folder.mkdir(parents=True)
    state, fields = exported(drafter), dict(PLAIN)
    if form == "eyas checkpoint":
        save_checkpoint(folder / "step-000007", drafter, {"x/step": torch.tensor(1.0)}, Position(7), {})
        return folder / "step-000007"
    if form == "speculators":
        fields = dict(SPECULATORS)
        state = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in state.items()}
        state["embed_tokens.weight"] = torch.randn(VOCAB, 16)
        state["verifier_norm.weight"] = torch.ones(16)
    elif form == "under model.":
        state = {name if name == "lm_head.weight" else f"model.{name}": t for name, t in state.items()}
        state["model.midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    elif form == "SpecForge":
        torch.save({"global_step": 3, "args": object}, folder / "training_state.pt")
    elif form == "wrapped":
        state = {f"draft_model._orig_mod.{name}": tensor for name, tensor in state.items()}
    (folder / "config.json").write_text(json.dumps(fields))
    if form == "pickled":
        torch.save(state, folder / "pytorch_model.bin")
    elif form == "in two files":
        names = sorted(state)
        save_file({n: state[n] for n in names[:4]}, folder / "model-00001-of-00002.safetensors")
        save_file({n: state[n] for n in names[4:]}, folder / "model-00002-of-00002.safetensors")
    else:
        save_file(state, folder / "model.safetensors")
    return folder


FORMS = [
    "eyas checkpoint", "speculators", "published", "under model.", "SpecForge", "wrapped", "pickled", "in two files",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_weights(tmp_path: Path, form: str) -> None:
    saved = trained_drafter()
    folder = write(tmp_path / "drafter", form, saved)
    found = read_drafter(drafter_source(folder).path, tiny_config())
    drafter = Drafter(tiny_config())
    drafter.set_vocabulary(torch.arange(1, VOCAB, 2))
    start_from(drafter, found, torch.zeros(11, 16), [0, 1, 2])
    for name, tensor in exported(saved).items():
        assert torch.equal(drafter.state_dict()[name], tensor), f"{form}: {name}"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    return train_inputs(tmp_path_factory.mktemp("inputs"))


def test_a_run_goes_on_from_a_run_and_its_fingerprint_says_so(
    inputs: dict[str, Source], tmp_path: Path
) -> None:
    options = dataclasses.replace(OPTIONS, learning_rate=2e-3, epochs=4)
    first = stage.run(options, inputs, Out(tmp_path / "first"))
    on = {**inputs, "start": drafter_source(tmp_path / "first")}
    second = stage.run(dataclasses.replace(OPTIONS, epochs=1), on, Out(tmp_path / "second"))
    assert second.inputs["start"] == on["start"].fingerprint
    files = [
        folder / manifest.actual["checkpoint"] / "model.safetensors"
        for folder, manifest in ((tmp_path / "first", first), (tmp_path / "second", second))
    ]
    one, two = (load_file(file) for file in files)
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-6, msg=f"{name} did not come over")
    line = json.loads((tmp_path / "second" / "log.jsonl").read_text().splitlines()[0])
    fresh = json.loads((tmp_path / "first" / "log.jsonl").read_text().splitlines()[0])
    assert sum(line["cross_entropy"]) < sum(fresh["cross_entropy"])


def test_another_draft_vocabulary_takes_known_rows_by_id_and_the_rest_from_the_target(
    inputs: dict[str, Source], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tiny_drafter(3, torch.float32)
    theirs = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    saved.set_vocabulary(theirs)
    on = {**inputs, "start": drafter_source(write(tmp_path / "drafter", "published", saved))}
    manifest = stage.run(OPTIONS, on, Out(tmp_path / "run"))
    head = load_file(tmp_path / "run" / manifest.actual["checkpoint"] / "model.safetensors")["lm_head.weight"]
    target = TargetWeights(inputs["target"].path).head()
    for row, target_id in enumerate(range(1, VOCAB, 2)):
        expected = saved.lm_head.weight[target_id - 1] if target_id <= 11 else target[target_id]
        assert torch.equal(head[row], expected), f"target id {target_id}"
    assert "5 of 11 draft ids are new" in capsys.readouterr().err


def spoiled(form: str, folder: Path) -> None:
    config, weights = folder / "config.json", folder / "model.safetensors"
    fields, state = json.loads(config.read_text()), load_file(weights)
    if form == "missing":
        del state["midlayer.mlp.up_proj.weight"]
    elif form == "unknown":
        state["layers.1.mlp.up_proj.weight"] = torch.ones(2)
    elif form == "no head":
        del state["lm_head.weight"]
    elif form == "misshapen":
        state["fc.weight"] = state["fc.weight"][:, :32].contiguous()
    elif form == "no d2t":
        del state["d2t"]
    elif form == "d2t of ids":
        state["d2t"] = state["d2t"] + torch.arange(11)
        state["d2t"][-1] = 400
    elif form == "flag":
        fields["norm_before_residual"] = True
    elif form == "speculators default":
        fields = {"speculators_model_type": "eagle3"}
    elif form == "layers":
        fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 9, 12]
    elif form == "not json":
        config.write_text("{")
        return
    config.write_text(json.dumps(fields))
    save_file(state, weights)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("missing", "midlayer.mlp.up_proj.weight"),
        ("unknown", "layers.1.mlp.up_proj.weight"),
        ("no head", "lm_head.weight"),
        ("misshapen", "fc.weight"),
        ("no d2t", "no d2t"),
        ("d2t of ids", "offsets"),
        ("flag", "training.network.norm_before_residual to true"),
        ("speculators default", "training.network.norm_before_residual to true"),
        ("layers", "[3, 9, 12]"),
        ("not json", "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    inputs: dict[str, Source], tmp_path: Path, form: str, text: str
) -> None:
    folder = write(tmp_path / "drafter", "published", trained_drafter())
    spoiled(form, folder)
    with pytest.raises(EyasError) as caught:
        stage.run(OPTIONS, {**inputs, "start": drafter_source(folder)}, Out(tmp_path / "run"))
    assert text in str(caught.value)
    assert caught.value.mend


def test_pickled_programs_are_never_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "drafter", "pickled", trained_drafter())
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple:
            return (ran.write_text, ("x",))

    torch.save({"fc.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(EyasError, match="more than tensors"):
        read_drafter(folder, tiny_config())
    assert not ran.exists()


@pytest.mark.parametrize("what", ["nothing", "no weights"])
def test_a_folder_without_a_drafter_is_refused(tmp_path: Path, what: str) -> None:
    if what == "no weights":
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EyasError, match=r"drafter to start from|holds no weights"):
        drafter_source(tmp_path)


def test_weights_and_not_places_make_the_fingerprint(tmp_path: Path) -> None:
    one = drafter_source(write(tmp_path / "one", "published", trained_drafter()))
    same = drafter_source(write(tmp_path / "two", "published", trained_drafter()))
    other = drafter_source(write(tmp_path / "three", "published", tiny_drafter(4, torch.float32)))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_an_own_embedding_comes_over(tmp_path: Path, inputs: dict[str, Source]) -> None:
    network = NetworkOptions(hidden_size=24)
    options = dataclasses.replace(
        OPTIONS, network=network, init="random", train_head=True, epochs=2, learning_rate=1e-2
    )
    first = stage.run(options, inputs, Out(tmp_path / "first"))
    on = {**inputs, "start": drafter_source(tmp_path / "first")}
    second = stage.run(dataclasses.replace(options, learning_rate=1e-9), on, Out(tmp_path / "second"))
    one, two = (
        load_file(tmp_path / name / m.actual["checkpoint"] / "model.safetensors")["embed_tokens.weight"]
        for name, m in (("first", first), ("second", second))
    )
    torch.testing.assert_close(one, two, rtol=0, atol=1e-6)


def test_the_option_alone_is_enough(inputs: dict[str, Source], tmp_path: Path) -> None:
    folder = write(tmp_path / "drafter", "published", trained_drafter())
    options = dataclasses.replace(OPTIONS, start=str(folder))
    manifest = stage.run(options, inputs, Out(tmp_path / "run"))
    assert manifest.inputs["start"] == drafter_source(folder).fingerprint
