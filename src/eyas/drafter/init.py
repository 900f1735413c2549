"""Where a drafter's weights start.

`target`: the layer is the target's last one, put where the 2H-wide input holds the hidden state, and fc
passes the last aux boundary through. `ridge`: fc and attention are fitted in closed form (closed_form.py).
`random`: chance. The head's rows and the final norm are the target's in the first two; the head's rows
always, where the head is frozen.

Shapes: A aux boundaries, G target hidden, H draft hidden, R draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from eyas.core.errors import EyasError
from eyas.states.store import StateRow

from .closed_form import collect, write_closed_form
from .network import Drafter
from .target_weights import TargetWeights

_SCATTER = 0.02
"""Standard deviation of drawn matrices, as in Llama."""
_FC_NOISE = 0.005
"""Noise on the pass-through fc, so that no aux boundary starts at exactly nothing."""


def init_random(drafter: Drafter, seed: int) -> None:
    """Every matrix normal(0, 0.02) but the frozen ones, norms at 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _name, parameter in drafter.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(_drawn(parameter, _SCATTER, generator))


def init_from_target(drafter: Drafter, weights: TargetWeights, last_layer: int, seed: int) -> None:
    """The target's last layer on the hidden half of the input, nothing on the embedding half."""
    _require_width(drafter, "target")
    layer = weights.layer(last_layer)
    generator = torch.Generator().manual_seed(seed)
    mid, width = drafter.midlayer, drafter.config.hidden_size
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            matrix = getattr(mid.self_attn, name).weight
            matrix.zero_()
            matrix[:, width:].copy_(layer[f"self_attn.{name}.weight"])
        mid.self_attn.o_proj.weight.copy_(layer["self_attn.o_proj.weight"])
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(mid.mlp, name).weight.copy_(layer[f"mlp.{name}.weight"])
        mid.input_layernorm.weight.fill_(1.0)
        mid.hidden_norm.weight.copy_(layer["input_layernorm.weight"])
        mid.post_attention_layernorm.weight.copy_(layer["post_attention_layernorm.weight"])
        drafter.fc.weight.copy_(_drawn(drafter.fc.weight, _FC_NOISE, generator))
        drafter.fc.weight[:, -width:].add_(torch.eye(width))
        drafter.norm.weight.copy_(weights.final_norm())


def init_ridge(drafter: Drafter, weights: TargetWeights, rows: Iterable[StateRow], seed: int) -> None:
    """fc and attention by least squares over the rows (closed_form.py); an MLP that starts at nothing."""
    _require_width(drafter, "ridge")
    init_random(drafter, seed)
    sums = collect(rows, weights.embedding(), weights.final_norm())
    with torch.no_grad():
        drafter.norm.weight.copy_(weights.final_norm())
        drafter.midlayer.mlp.down_proj.weight.zero_()
    write_closed_form(drafter, sums)


def copy_head(drafter: Drafter, rows_RG: Tensor) -> None:
    """The draft head's rows are the target's, in the order of the draft vocabulary."""
    with torch.no_grad():
        drafter.lm_head.weight.copy_(rows_RG)


def _drawn(like: Tensor, scatter: float, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float32).mul_(scatter).to(like.dtype)


def _require_width(drafter: Drafter, init: str) -> None:
    config = drafter.config
    if config.hidden_size != config.target_hidden_size:
        raise EyasError(
            "a drafter of another width than the target cannot start from the target's weights",
            expected=f"hidden size {config.target_hidden_size}",
            found=config.hidden_size,
            mend=f"set training.init to random instead of {init}",
        )
