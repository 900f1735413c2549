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
"""The class that SGLang has under this name and that vLLM takes as an alias."""


def require_servable(config: DrafterConfig, engine: str, file: Path) -> list[str]:
    """Refuse what the engine would ignore without a word; warn of what only newer builds of it read."""
    if config.hidden_act != "silu":
        raise _unservable(engine, "hidden_act", "silu", config.hidden_act, file)
    if engine == "sglang" and config.norm_before_residual:
        raise _unservable(engine, "norm_before_residual", False, True, file)
    warnings = []
    newer = [name for name in ("norm_before_fc", "fc_norm", "norm_output") if getattr(config, name)]
    if newer:
        warnings.append(f"{engine}: older builds ignore {', '.join(newer)} and draft badly without a word")
    if config.num_aux != 3:
        warnings.append(f"{engine}: older builds take 3 aux boundaries, this drafter has {config.num_aux}")
    return warnings


def engine_config(
    config: DrafterConfig, engine: str, boundaries: list[int], facts: TargetFacts, dtype: str
) -> dict[str, Any]:
    """The fields of config.json, in a fixed order. Positions are the target's, so that no table is too
    short; norm flags are always written, since their defaults differ between formats."""
    assert len(boundaries) == config.num_aux
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "torch_dtype": dtype,
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
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
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "rope_theta": facts.rope_theta,
        "rope_scaling": facts.rope_scaling,
        "max_position_embeddings": facts.max_position_embeddings,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "logit_scale": config.logit_scale,
        "final_logit_softcapping": config.soft_cap,
        "num_aux_hidden_states": config.num_aux,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": to_engine(engine, boundaries, facts),
            "use_aux_hidden_state": True,
        },
    }


def read_engine_config(file: Path, engine: str, facts: TargetFacts) -> tuple[DrafterConfig, list[int]]:
    """(configuration, aux boundaries) of an exported folder's config.json, read as `engine` reads it."""
    try:
        fields = orjson.loads(file.read_bytes())
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
