"""config.json as an engine understands it, with what it guesses where a field is absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eyas.core.contract import TargetFacts, rope_of
from eyas.drafter.config import DrafterConfig
from eyas.drafter.positions import differing

from .engine_config import ARCHITECTURE, FLAGS, newer_builds
from .layer_ids import from_engine

_ARCHITECTURES = {
    "sglang": (ARCHITECTURE,),
    "vllm": (ARCHITECTURE, "Eagle3LlamaForCausalLM"),
    "trtllm": (ARCHITECTURE, "EAGLE3LlamaForCausalLM", "LlamaForCausalLM"),
}
_OTHER_DRAFTERS = {
    "Eagle3DeepseekV2ForCausalLM": "a drafter with latent attention",
    "Eagle3DeepSeekV3ForCausalLM": "a drafter with latent attention",
    "PEagleDraftModel": "a drafter of parallel drafting",
    "PeagleLlamaForCausalLM": "a drafter of parallel drafting",
    "Eagle3Qwen3ForCausalLM": "a Qwen-type drafter",
}
_METHODS = {"sglang": "EAGLE3", "vllm": "eagle3", "speculators": "eagle3", "trtllm": "Eagle3"}

RESIDUAL = "norm_before_residual"


@dataclass
class Understanding:
    """config: the network that the engine builds. boundaries: the aux boundaries that it feeds it, None where no
    target is given and the ids are absent. faults, warnings: what is wrong with the file for this engine."""

    config: DrafterConfig
    boundaries: list[int] | None
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def understand(fields: dict[str, Any], engine: str, facts: TargetFacts | None) -> Understanding:
    """What `engine` makes of the fields. KeyError for a field without which nothing can be built."""
    faults: list[str] = []
    warnings: list[str] = []
    fields = _plain(fields, engine, faults)
    _check_architecture(fields, engine, faults)
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    ids, boundaries = _boundaries(fields, engine, facts, faults, warnings)
    rope_theta, rope_scaling = rope_of(fields)
    draft_vocab = fields.get("draft_vocab_size") or fields["vocab_size"]
    config = DrafterConfig(
        hidden_size=hidden,
        target_hidden_size=fields.get("target_hidden_size") or hidden,
        intermediate_size=fields["intermediate_size"],
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=fields.get("head_dim") or hidden // heads,
        num_aux=fields.get("num_aux_hidden_states") or (len(ids) if ids else 3),
        vocab_size=fields["vocab_size"],
        draft_vocab_size=draft_vocab,
        rms_norm_eps=fields.get("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position_embeddings=fields.get("max_position_embeddings", 2048),
        hidden_act=fields.get("hidden_act", "silu"),
        logit_scale=float(fields.get("logit_scale") or 1.0),
        soft_cap=fields.get("final_logit_softcapping"),
        **_flags(fields, engine, faults, warnings),
    )
    if fields.get("num_hidden_layers", 1) != 1:
        faults.append(f"num_hidden_layers is {fields['num_hidden_layers']}: Eyas knows drafters of one layer")
    if fields.get("tie_word_embeddings"):
        faults.append("tie_word_embeddings is true: the engine takes the embedding for the head")
    if engine == "trtllm" and not fields.get("draft_vocab_size"):
        faults.append("draft_vocab_size is absent: TensorRT-LLM takes the folder for an ordinary model")
    warnings += newer_builds(config, engine)
    if fields.get("attention_bias"):
        faults.append("attention_bias is true: Eyas knows drafters without biases")
    if facts is not None:
        _check_target(config, facts, faults)
    return Understanding(config, boundaries, faults, warnings)


def method_fault(engine: str, method: str) -> str | None:
    """What is wrong with serving an EAGLE-3 drafter under this method or algorithm name."""
    right = _METHODS[engine]
    if method == right or (engine == "trtllm" and method.lower() in ("eagle3", "eagle")):
        return None
    return (
        f"the method is {method!r} but this drafter is of kind EAGLE-3: {engine} wants {right!r}; under another name it"
        " runs without the target's fused states, and the accept length is 1.00 with no error"
    )


def _plain(fields: dict[str, Any], engine: str, faults: list[str]) -> dict[str, Any]:
    """The fields in the plain form; those of speculators are translated as vLLM does it."""
    if "speculators_model_type" not in fields:
        if engine == "speculators":
            faults.append("speculators_model_type is absent: the library does not know the folder")
        return fields
    if engine not in ("speculators", "vllm"):
        faults.append(f"the config is in the format of speculators, which {engine} does not read")
    kind = fields["speculators_model_type"]
    if kind != "eagle3":
        faults.append(f"speculators_model_type is {kind!r}, not 'eagle3'")
    config = fields.get("speculators_config") or {}
    try:
        algorithm = config.get("algorithm", "eagle3")
        _ = config["proposal_methods"][0]["speculative_tokens"], config["verifier"]["name_or_path"]
        if algorithm != "eagle3":
            faults.append(f"speculators_config.algorithm is {algorithm!r}, not 'eagle3'")
    except (KeyError, IndexError, TypeError):
        faults.append("speculators_config lacks proposal_methods or verifier: vLLM does not start")
    top = ("draft_vocab_size", "target_hidden_size", *FLAGS)
    return {
        **fields["transformer_layer_config"],
        **{name: fields[name] for name in top if name in fields},
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": fields.get("eagle_aux_hidden_state_layer_ids")},
        "speculators": True,
    }


def _check_architecture(fields: dict[str, Any], engine: str, faults: list[str]) -> None:
    if fields.get("speculators") or engine == "speculators":
        return
    given = (fields.get("architectures") or ["none"])[0]
    if given in _OTHER_DRAFTERS:
        faults.append(
            f"architectures is [{given}], {_OTHER_DRAFTERS[given]}: Eyas replays Llama-type drafters alone"
        )
    elif given not in _ARCHITECTURES[engine]:
        faults.append(
            f"architectures is [{given}]: {engine} takes it for another kind of model, without the fused states;"
            f" it must be [{_ARCHITECTURES[engine][0]}]"
        )


def _boundaries(
    fields: dict[str, Any],
    engine: str,
    facts: TargetFacts | None,
    faults: list[str],
    warnings: list[str],
) -> tuple[list[int] | None, list[int] | None]:
    """(ids as written, boundaries as the engine reads them)."""
    eagle = fields.get("eagle_config") or {}
    if eagle.get("use_aux_hidden_state") is False:
        faults.append("use_aux_hidden_state is false: the drafter runs without the target's fused states")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") or fields.get("eagle_aux_hidden_state_layer_ids")
    if not ids:
        usual = None if facts is None else list(facts.default_boundaries)
        warnings.append(
            f"no layer ids are written: {engine} falls back to its own choice, boundaries {usual or '2, L/2, L-3'}"
        )
        return None, usual
    if ids != sorted(set(ids)):
        faults.append(
            f"the layer ids {ids} do not rise: {engine} sorts them and the columns of fc no longer fit"
        )
    if facts is None:
        return ids, None
    boundaries = from_engine(engine, ids, facts)
    if boundaries[0] < 0 or boundaries[-1] > facts.num_layers:
        faults.append(f"the layer ids {ids} are outside a target of {facts.num_layers} layers")
    usual = list(facts.default_boundaries)
    if boundaries != usual and boundaries in ([b - 1 for b in usual], [b + 1 for b in usual]):
        warnings.append(
            f"{engine} reads the layer ids {ids} as boundaries {boundaries}, one off the usual {usual}: they look like"
            " another engine's numbers"
        )
    return ids, boundaries


def _flags(fields: dict[str, Any], engine: str, faults: list[str], warnings: list[str]) -> dict[str, bool]:
    flags = {}
    eagle = fields.get("eagle_config") or {}
    for name in FLAGS:
        default = name == RESIDUAL and bool(fields.get("speculators"))
        given = fields.get(name)
        if name == "norm_before_fc":
            given = eagle.get(name, None if engine == "trtllm" else given)
        if given is None:
            warnings.append(f"{name} is not written: {engine} takes it as {str(default).lower()}")
        flags[name] = default if given is None else bool(given)
    if engine in ("sglang", "trtllm") and flags[RESIDUAL]:
        faults.append(f"{RESIDUAL} is true: {engine} has no such drafter and ignores the flag")
    return flags


def _check_target(config: DrafterConfig, facts: TargetFacts, faults: list[str]) -> None:
    for name, ours, theirs in (
        ("target_hidden_size", config.target_hidden_size, facts.hidden_size),
        ("vocab_size", config.vocab_size, facts.vocab_size),
        *differing(config, facts),
    ):
        if ours != theirs:
            faults.append(f"{name} is {ours}, the target's is {theirs}")
    if config.max_position_embeddings < facts.max_position_embeddings:
        faults.append(
            f"max_position_embeddings is {config.max_position_embeddings}, the target's is"
            f" {facts.max_position_embeddings}: longer prompts crash one engine and read rubbish in another"
        )
