"""config.json as the engines read it, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError
from eyas.drafter.config import DrafterConfig

from .layer_ids import from_engine, to_engine

ARCHITECTURE = "LlamaForCausalLMEagle3"
"""The class that SGLang has under this name, that vLLM takes as an alias, and that TensorRT-LLM turns into
its EAGLE3LlamaForCausalLM where `draft_vocab_size` is set."""
SPECULATORS_ARCHITECTURE = "Eagle3Speculator"

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Always written, since their defaults differ between formats."""


def require_servable(config: DrafterConfig, engine: str, file: Path) -> list[str]:
    """Refuse what the engine would ignore without a word; warn of what only newer builds of it read."""
    if config.hidden_act != "silu":
        raise _unservable(engine, "hidden_act", "silu", config.hidden_act, file)
    if engine in ("sglang", "trtllm") and config.norm_before_residual:
        raise _unservable(engine, "norm_before_residual", False, True, file)
    if engine == "trtllm" and config.fc_norm and config.norm_before_fc:
        raise _unservable(engine, "norm_before_fc", "false beside fc_norm", True, file)
    if engine == "speculators" and config.logit_scale != 1.0:
        raise _unservable(engine, "logit_scale", 1.0, config.logit_scale, file)
    return newer_builds(config, engine)


def newer_builds(config: DrafterConfig, engine: str) -> list[str]:
    """Warnings of what only newer builds of the engine read."""
    warnings = []
    newer = [name for name in ("norm_before_fc", "fc_norm", "norm_output") if getattr(config, name)]
    if newer:
        warnings.append(f"{engine}: older builds ignore {', '.join(newer)} and draft badly without a word")
    if config.num_aux != 3:
        warnings.append(f"{engine}: older builds take 3 aux boundaries, this drafter has {config.num_aux}")
    return warnings


def engine_config(
    config: DrafterConfig,
    engine: str,
    boundaries: list[int],
    facts: TargetFacts,
    dtype: str,
    draft_tokens: int = 3,
) -> dict[str, Any]:
    """The fields of config.json, in a fixed order. Positions reach as far as the target's, so that no
    table is too short."""
    assert len(boundaries) == config.num_aux
    ids = to_engine(engine, boundaries, facts)
    layer = _layer_fields(config, facts, dtype)
    if engine == "speculators":
        return _speculators_fields(config, ids, layer, draft_tokens)
    eagle: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    if engine == "trtllm":
        eagle["norm_before_fc"] = config.norm_before_fc  # TensorRT-LLM reads this flag here alone
    return {
        "architectures": [ARCHITECTURE],
        **layer,
        "target_hidden_size": config.target_hidden_size,
        "draft_vocab_size": config.draft_vocab_size,
        **{name: getattr(config, name) for name in FLAGS},
        "logit_scale": config.logit_scale,
        "final_logit_softcapping": config.soft_cap,
        "num_aux_hidden_states": config.num_aux,
        "eagle_config": eagle,
    }


def _layer_fields(config: DrafterConfig, facts: TargetFacts, dtype: str) -> dict[str, Any]:
    """The Llama layer, in the words of transformers."""
    return {
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": False,
        "rope_theta": config.rope_theta,
        "rope_scaling": config.rope_scaling,
        **_part_turned(config),
        "max_position_embeddings": max(config.max_position_embeddings, facts.max_position_embeddings),
    }


def _part_turned(config: DrafterConfig) -> dict[str, float]:
    """partial_rotary_factor once more beside the scaling, where SGLang looks for it."""
    part = (config.rope_scaling or {}).get("partial_rotary_factor")
    return {} if part is None else {"partial_rotary_factor": part}


def _speculators_fields(
    config: DrafterConfig, ids: list[int], layer: dict[str, Any], draft_tokens: int
) -> dict[str, Any]:
    """The format of the speculators library, which vLLM translates. The target is named when it is served."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": draft_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [SPECULATORS_ARCHITECTURE],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "TARGET", "architectures": []},
        },
        "torch_dtype": layer["torch_dtype"],
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **{name: getattr(config, name) for name in FLAGS},
        "eagle_aux_hidden_state_layer_ids": ids,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }


def read_engine_config(file: Path, engine: str, facts: TargetFacts) -> tuple[DrafterConfig, list[int]]:
    """(configuration, aux boundaries) of an exported folder's config.json, read as `engine` reads it."""
    try:
        fields = orjson.loads(file.read_bytes())
        if engine == "speculators":
            fields = _flat(fields)
        eagle = fields["eagle_config"]
        if fields["architectures"] != [ARCHITECTURE] or fields["tie_word_embeddings"]:
            raise EyasError(
                "the folder holds no drafter that an engine takes for EAGLE-3",
                file=file,
                expected=f"architectures [{ARCHITECTURE}], tie_word_embeddings false",
                found=f"{fields['architectures']}, {fields['tie_word_embeddings']}",
                mend="export the checkpoint again with `eyas export`",
            )
        config = DrafterConfig(
            num_heads=fields["num_attention_heads"],
            num_kv_heads=fields["num_key_value_heads"],
            num_aux=fields["num_aux_hidden_states"],
            soft_cap=fields["final_logit_softcapping"],
            **{name: fields[name] for name in _SAME_NAME},
        )
        return config, from_engine(engine, eagle["eagle_aux_hidden_state_layer_ids"], facts)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EyasError(
            "the exported configuration cannot be read",
            file=file,
            expected="a config.json that `eyas export` wrote",
            found=f"{type(error).__name__}: {error}",
            mend="export the checkpoint again with `eyas export`",
        ) from error


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """A speculators config in the plain form, as vLLM translates it."""
    if fields["speculators_model_type"] != "eagle3" or fields["architectures"] != [SPECULATORS_ARCHITECTURE]:
        raise KeyError("speculators_model_type eagle3")
    ids = fields["eagle_aux_hidden_state_layer_ids"]
    return {
        **fields["transformer_layer_config"],
        **{name: fields[name] for name in ("draft_vocab_size", "target_hidden_size", *FLAGS)},
        "architectures": [ARCHITECTURE],
        "logit_scale": 1.0,
        "final_logit_softcapping": None,
        "num_aux_hidden_states": len(ids),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids},
    }


_SAME_NAME = (
    "hidden_size",
    "target_hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "hidden_act",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "logit_scale",
)


def _unservable(engine: str, name: str, expected: object, found: object, file: Path) -> EyasError:
    return EyasError(
        f"{engine} has no drafter with {name} = {found}; it would ignore the setting and draft badly",
        file=file,
        record=name,
        expected=expected,
        found=found,
        mend="train with the engine's setting, or export for another engine",
    )
