"""Rotary positions are those of transformers, for every scaling whose table does not move with the length."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from eyas.core.errors import EyasError
from eyas.drafter.rope import Rotary, rotate
from tiny import tiny_config

SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"] if s else "default")
def test_turned_heads_are_bit_equal_to_transformers(scaling: dict | None) -> None:
    config = tiny_config(rope_scaling=scaling, head_dim=8)
    cos, sin = Rotary(config).table(200, torch.float32)
    llama = LlamaConfig(
        hidden_size=16,
        num_attention_heads=4,
        head_dim=8,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": 16.0},
    )
    x = torch.randn(1, 4, 200, 8)
    at = torch.arange(200).unsqueeze(0)
    expected, _ = apply_rotary_pos_emb(x, x, *LlamaRotaryEmbedding(llama)(x, at))
    assert torch.equal(rotate(x[0].transpose(0, 1), cos, sin).transpose(0, 1), expected[0])


def test_a_table_that_moves_with_the_length_is_refused_and_said() -> None:
    with pytest.raises(EyasError, match="change with the length"):
        Rotary(tiny_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}))
