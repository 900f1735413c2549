"""The rotary positions of a drafter: one set of frequencies at every length, also where its target changes them.

Two scalings choose their frequencies by length, and engines do not agree by which. longrope: transformers looks at
the text, vLLM at max_model_len (vllm pull 27431), SGLang at the longest text of the batch. dynamic: transformers
raises the base as the text grows, vLLM 0.32 never (its table is the plain one), vLLM before and SGLang raise it at
once for the longest text possible; and none of them turns the keys again that it already holds. A drafter trained for
one of these would meet other frequencies in the next, with no error. A drafter need not follow: it is trained with
the set that its target has, in transformers, for the longest row, and its config.json says so in words that leave an
engine no choice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError

from .config import DrafterConfig


def settled(config: DrafterConfig, longest: int) -> DrafterConfig:
    """The config with the frequencies for a text of `longest` tokens at all lengths; itself where they never change.

    EyasError for a dynamic scaling without a factor.
    """
    kind = (config.rope_scaling or {}).get("rope_type")
    if kind == "longrope":
        return replace(config, rope_scaling=_one_list(config, longest))
    return _fixed_base(config, longest) if kind == "dynamic" else config


def is_settled(scaling: dict[str, Any] | None) -> bool:
    """Whether the scaling means the same frequencies at every length."""
    kind = (scaling or {}).get("rope_type")
    if kind == "longrope":
        assert scaling is not None
        return bool(scaling["short_factor"] == scaling["long_factor"])
    return kind != "dynamic"


def differing(config: DrafterConfig, facts: TargetFacts) -> list[tuple[str, Any, Any]]:
    """(field, the drafter's, the target's) of positions that are neither the target's nor the target's settled."""
    target = replace(
        config,
        rope_theta=facts.rope_theta,
        rope_scaling=facts.rope_scaling,
        max_position_embeddings=facts.max_position_embeddings,
    )
    reach = max(facts.max_position_embeddings, config.max_position_embeddings)
    known = [target, settled(target, 1), settled(target, reach + 1)]
    theta_fits = any(one.rope_theta == config.rope_theta for one in known)
    if (facts.rope_scaling or {}).get("rope_type") == "dynamic":
        theta_fits = (
            config.rope_theta >= facts.rope_theta
        )  # it follows from the longest row, which is not known here
    found: list[tuple[str, Any, Any]] = []
    if not theta_fits:
        found.append(("rope_theta", config.rope_theta, facts.rope_theta))
    if all(one.rope_scaling != config.rope_scaling for one in known):
        found.append(("rope_scaling", config.rope_scaling, facts.rope_scaling))
    return found


def _one_list(config: DrafterConfig, longest: int) -> dict[str, Any]:
    """longrope with one list of factors and one attention factor under every name that an engine reads.

    Formulas: transformers, _compute_longrope_parameters; the two mscale are of Phi-3.5-MoE.
    """
    scaling = dict(config.rope_scaling or {})
    original = scaling.setdefault("original_max_position_embeddings", config.max_position_embeddings)
    which = "long" if longest > original else "short"
    factor = scaling.get("factor") or config.max_position_embeddings / original
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    attention = scaling.get(f"{which}_mscale") or scaling.get("attention_factor") or usual
    one = scaling[f"{which}_factor"]
    scaling |= {"short_factor": one, "long_factor": one}
    return scaling | dict.fromkeys(("attention_factor", "short_mscale", "long_mscale"), attention)


def _fixed_base(config: DrafterConfig, longest: int) -> DrafterConfig:
    """dynamic as plain positions of another base, with a table that reaches as far as the scaling is meant to.

    Formula: transformers, _compute_dynamic_ntk_parameters.
    """
    scaling, limit = dict(config.rope_scaling or {}), config.max_position_embeddings
    factor = scaling.get("factor")
    if factor is None:
        raise EyasError(
            "rotary positions of type `dynamic` without a factor are not known to transformers",
            expected="rope_scaling.factor",
            found=", ".join(sorted(scaling)),
            mend="write the factor into rope_scaling of the target's config.json",
        )
    part = scaling.get("partial_rotary_factor", 1.0)
    width = int(config.head_dim * part)
    grown: float = (factor * max(longest, limit) / limit - (factor - 1)) ** (width / (width - 2))
    return replace(
        config,
        rope_theta=config.rope_theta * grown,
        rope_scaling={"rope_type": "default", "partial_rotary_factor": part} if part != 1.0 else None,
        max_position_embeddings=max(math.ceil(limit * factor), longest),
    )
