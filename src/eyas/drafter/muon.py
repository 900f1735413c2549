"""Muon for the matrices of fc and the layer.

The step of a matrix is its momentum made orthogonal (five Newton-Schulz iterations, in bfloat16), scaled by
0.2 * sqrt(max(rows, columns)) so that its root mean square is that of an AdamW step and one learning rate
serves both. Source: torch.optim.Muon (Jordan's Muon with Moonshot's scaling, adjust_lr_fn match_rms_adamw).
Embeddings, heads and norms stay with AdamW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .options import TrainOptions

_KEPT_BY_ADAMW = ("embed_tokens.", "lm_head.")


def is_turned(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon takes this parameter."""
    return parameter.dim() == 2 and not name.startswith(_KEPT_BY_ADAMW)


def muon(groups: Sequence[dict[str, Any]], options: TrainOptions) -> torch.optim.Optimizer:
    return torch.optim.Muon(
        groups,
        lr=options.learning_rate,
        momentum=options.betas[1],
        adjust_lr_fn="match_rms_adamw",
    )
