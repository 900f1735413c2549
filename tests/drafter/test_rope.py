"""Rotary positions are those of transformers, at the shapes of real targets and however their config words them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.phi3 import modeling_phi3

from eyas.core.contract import rope_of
from eyas.core.errors import EyasError
from eyas.drafter.positions import is_settled, settled
from eyas.drafter.rope import Rotary, rotate
from tiny import tiny_config

LLAMA_31 = {
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
QWEN_YARN = {
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}
KIMI_K2 = {
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 1.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
LINEAR = {"max_position_embeddings": 16384, "rope_scaling": {"type": "linear", "factor": 4.0}}
DYNAMIC = {"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}


def phi(width: int, part: float = 1.0) -> dict[str, Any]:
    """As Phi-3.5 (head 96) and Phi-4-mini (three quarters of 128) write it, switching at 64 tokens."""
    pairs = int(width * part) // 2
    factors = {
        "short_factor": [1.0 + i / 50 for i in range(pairs)],
        "long_factor": [1.1 + i for i in range(pairs)],
    }
    return {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": part,
        "rope_scaling": {"type": "longrope", **factors},
    }


def drafter_rotary(fields: dict[str, Any], width: int, longest: int) -> Rotary:
    theta, scaling = rope_of(fields)
    limit = fields["max_position_embeddings"]
    config = tiny_config(
        rope_theta=theta, rope_scaling=scaling, max_position_embeddings=limit, head_dim=width
    )
    return Rotary(settled(config, longest))


@pytest.mark.parametrize("length", [64, 200])
@pytest.mark.parametrize(
    "fields", [LLAMA_31, QWEN_YARN, KIMI_K2, LINEAR, DYNAMIC, {"max_position_embeddings": 64}]
)
def test_turned_heads_are_bit_equal_to_llamas_of_that_length(fields: dict[str, Any], length: int) -> None:
    cos, sin = drafter_rotary(fields, 128, length).table(length, torch.float32)
    rope = {**fields.get("rope_scaling", {"rope_type": "default"})}
    rope = {"rope_type": rope.pop("type", "default"), "rope_theta": fields.get("rope_theta", 10000.0)} | rope
    llama = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        head_dim=128,
        max_position_embeddings=fields["max_position_embeddings"],
        rope_parameters=rope,
    )
    x = torch.randn(1, 4, length, 128)
    expected, _ = apply_rotary_pos_emb(
        x, x, *LlamaRotaryEmbedding(llama)(x, torch.arange(length).unsqueeze(0))
    )
    turned = rotate(x[0].transpose(0, 1), cos, sin).transpose(0, 1)
    if is_settled(rope):
        assert torch.equal(turned, expected[0])
    torch.testing.assert_close(
        turned, expected[0], rtol=0, atol=2e-5
    )  # the base of dynamic passes through a float


@pytest.mark.parametrize("length", [64, 65, 200])
@pytest.mark.parametrize(("width", "part"), [(96, 1.0), (128, 0.75)])
def test_longrope_is_phis_on_both_sides_of_the_switch(width: int, part: float, length: int) -> None:
    fields = phi(width, part)
    cos, sin = drafter_rotary(fields, width, length).table(length, torch.float32)
    config = Phi3Config(hidden_size=4 * width, num_attention_heads=4, num_key_value_heads=4, **fields)
    x = torch.randn(1, 4, length, width)
    reference = modeling_phi3.Phi3RotaryEmbedding(config)
    expected, _ = modeling_phi3.apply_rotary_pos_emb(x, x, *reference(x, torch.arange(length).unsqueeze(0)))
    assert torch.equal(rotate(x[0].transpose(0, 1), cos, sin).transpose(0, 1), expected[0])


def test_a_part_of_the_head_is_turned_where_the_target_turns_a_part() -> None:
    fields = {"max_position_embeddings": 64, "partial_rotary_factor": 0.5}
    cos, sin = drafter_rotary(fields, 8, 10).table(10, torch.float32)
    x = torch.randn(10, 2, 8)
    turned = rotate(x, cos, sin)
    assert cos.shape == (10, 4)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.equal(turned[1:, :, :4], x[1:, :, :4])


@pytest.mark.parametrize("longest", [10, 65])
@pytest.mark.parametrize("fields", [DYNAMIC, phi(8)], ids=["dynamic", "longrope"])
def test_what_is_settled_once_is_settled_for_every_length(fields: dict[str, Any], longest: int) -> None:
    theta, scaling = rope_of(fields)
    limit = fields["max_position_embeddings"]
    config = tiny_config(rope_theta=theta, rope_scaling=scaling, max_position_embeddings=limit, head_dim=8)
    once = settled(config, longest)
    assert settled(once, 10**6) == once == settled(once, 1), "a resumed run would meet other frequencies"


def test_frequencies_that_move_with_the_length_are_refused_and_said() -> None:
    with pytest.raises(EyasError, match="change with the length"):
        Rotary(tiny_config(rope_scaling={"rope_type": "dynamic", "factor": 2.0}))


def test_a_dynamic_scaling_without_a_factor_is_refused() -> None:
    with pytest.raises(EyasError, match="without a factor"):
        settled(tiny_config(rope_scaling={"rope_type": "dynamic", "alpha": 1000.0}), 10)


@pytest.mark.parametrize(
    ("fields", "scaling"),
    [
        ({"rope_scaling": None}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, None),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": {"type": "su", "factor": 2.0}, "original_max_position_embeddings": 7},
         {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 7}),
        ({"partial_rotary_factor": 0.5}, {"rope_type": "default", "partial_rotary_factor": 0.5}),
    ],
)  # fmt: skip
def test_old_words_of_a_config_mean_what_transformers_takes_them_for(
    fields: dict[str, Any], scaling: dict[str, Any] | None
) -> None:
    assert rope_of(fields)[1] == scaling
