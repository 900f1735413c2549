"""Rotary positions, through the frequency code of transformers, so that every scaling type is the target's."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eyas.core.errors import EyasError

from .config import DrafterConfig

_LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Types whose frequencies change with the length seen, so that a cached key would not fit a later query."""


class Rotary:
    """cos and sin by position. Shapes: P positions, D head dimension."""

    def __init__(self, config: DrafterConfig) -> None:
        kind = (config.rope_scaling or {}).get("rope_type", "default")
        if kind in _LENGTH_DEPENDENT:
            raise EyasError(
                f"rotary positions of type `{kind}` change with the length of the text",
                expected="default, linear, llama3 or yarn",
                found=kind,
                mend="give the drafter a fixed scaling: set rope_scaling in the target's config.json",
            )
        self._embedding = LlamaRotaryEmbedding(_llama_config(config))

    def table(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [length, D], of positions 0 .. length-1; angles in at least float32, as in Llama."""
        wide = torch.promote_types(dtype, torch.float32)
        angles = torch.outer(torch.arange(length, dtype=wide), self._embedding.inv_freq.to(wide)).repeat(1, 2)
        scaling = self._embedding.attention_scaling
        return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


def rotate(x_NJD: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Heads [N, J, D] turned to their positions, in their own number type; halves are paired, as in Llama."""
    left, right = x_NJD.chunk(2, dim=-1)
    turned_NJD = x_NJD * cos_ND.unsqueeze(1) + torch.cat((-right, left), dim=-1) * sin_ND.unsqueeze(1)
    return turned_NJD.to(x_NJD.dtype)


def _llama_config(config: DrafterConfig) -> LlamaConfig:
    parameters = {"rope_type": "default", **(config.rope_scaling or {}), "rope_theta": config.rope_theta}
    return LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=parameters,
    )
