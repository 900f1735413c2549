"""Rotary positions, through the frequency code of transformers, so that every scaling type is the target's."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eyas.core.errors import EyasError

from .config import DrafterConfig
from .positions import is_settled


class Rotary:
    """cos and sin by position. Shapes: P positions, D the turned width, the head's or its first part."""

    def __init__(self, config: DrafterConfig) -> None:
        scaling = config.rope_scaling or {}
        if not is_settled(scaling):
            raise EyasError(
                f"rotary positions of type `{scaling['rope_type']}` change with the length of the text, in each engine"
                " by another rule",
                expected="one set of frequencies: a fixed base, or longrope with short_factor as long_factor",
                found=f"rope_scaling {scaling}",
                mend="train the drafter with Eyas, which settles them, or state one set in the drafter's config.json",
            )
        self._embedding = LlamaRotaryEmbedding(_llama_config(config))

    def table(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [length, D], of positions 0 .. length-1; angles in at least float32, as in Llama."""
        wide = torch.promote_types(dtype, torch.float32)
        angles = torch.outer(torch.arange(length, dtype=wide), self._embedding.inv_freq.to(wide)).repeat(1, 2)
        scaling = self._embedding.attention_scaling
        return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


def rotate(x_NJE: Tensor, cos_ND: Tensor, sin_ND: Tensor) -> Tensor:
    """Heads [N, J, E] turned to their positions, in their own number type: the first D of E, halves paired, as in
    Llama, and the rest as it is, as in Phi-3."""
    x_NJD = x_NJE[..., : cos_ND.shape[-1]]
    left, right = x_NJD.chunk(2, dim=-1)
    turned_NJD = x_NJD * cos_ND.unsqueeze(1) + torch.cat((-right, left), dim=-1) * sin_ND.unsqueeze(1)
    turned_NJD = turned_NJD.to(x_NJE.dtype)
    if x_NJD.shape == x_NJE.shape:
        return turned_NJD
    return torch.cat((turned_NJD, x_NJE[..., x_NJD.shape[-1] :]), dim=-1)


def _llama_config(config: DrafterConfig) -> LlamaConfig:
    """A Llama whose whole head is the turned part."""
    parameters = {"rope_type": "default", **(config.rope_scaling or {}), "rope_theta": config.rope_theta}
    part = parameters.pop("partial_rotary_factor", 1.0)
    return LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=int(config.head_dim * part),
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=parameters,
    )
