"""AdamW with warm-up, cosine and clipping, and its state by parameter name."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .options import TrainOptions


def learning_rate(step: int, num_steps: int, options: TrainOptions) -> float:
    """The rate of step 0 .. num_steps-1: linear to the peak over warmup_steps, then a cosine down to
    min_lr_share of it at the last step."""
    if step < options.warmup_steps:
        return options.learning_rate * (step + 1) / options.warmup_steps
    whole = max(num_steps - 1 - options.warmup_steps, 1)
    done = min((step - options.warmup_steps) / whole, 1.0)
    share = options.min_lr_share + (1 - options.min_lr_share) * 0.5 * (1 + math.cos(math.pi * done))
    return options.learning_rate * share


class Optimizer:
    """Steps over the trainable parameters of a module."""

    def __init__(self, module: nn.Module, options: TrainOptions) -> None:
        self.options = options
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        matrices = [p for _, p in self._named if p.dim() > 1]
        vectors = [p for _, p in self._named if p.dim() == 1]
        groups = [
            {"params": matrices, "weight_decay": options.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, fused=True)

    def clip(self) -> float:
        """Scale the gradients down to the largest norm that is allowed; their norm before."""
        return float(nn.utils.clip_grad_norm_([p for _, p in self._named], self.options.clip))

    def step(self, rate: float) -> None:
        """Step with the gradients and forget them."""
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """`<parameter>/<what>` -> tensor."""
        return {
            f"{name}/{what}": tensor
            for name, parameter in self._named
            for what, tensor in self._adamw.state[parameter].items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        for name, parameter in self._named:
            prefix = f"{name}/"
            found = {
                key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
            }
            if found:
                self._adamw.state[parameter] = found
