"""AdamW and Muon with warm-up, cosine and clipping, and their state by parameter name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import like, local, whole
from .muon import is_turned, muon
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
    """Steps over the trainable parameters of a module, which may be shards of them (FSDP2)."""

    def __init__(self, module: nn.Module, options: TrainOptions) -> None:
        self.options = options
        self._named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        turned = [(n, p) for n, p in self._named if options.optimizer == "muon" and is_turned(n, p)]
        chosen = {id(p) for _, p in turned}
        matrices = [(n, p) for n, p in self._named if p.dim() > 1 and id(p) not in chosen]
        vectors = [(n, p) for n, p in self._named if p.dim() == 1]
        groups = [*self._groups(matrices, options.weight_decay), *self._groups(vectors, 0.0)]
        adamw = torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, fused=True)
        self._parts: list[torch.optim.Optimizer] = [adamw]
        if turned:
            self._parts.append(muon(self._groups(turned, options.weight_decay), options))

    def _groups(self, named: list[tuple[str, nn.Parameter]], decay: float) -> list[dict[str, Any]]:
        """Parameter groups; `share` is what a group's rate is multiplied by."""
        fc = [p for name, p in named if name == "fc.weight"]
        others = [p for name, p in named if name != "fc.weight"]
        pairs = ((others, 1.0), (fc, self.options.fc_rate))
        return [{"params": some, "weight_decay": decay, "share": share} for some, share in pairs if some]

    def clip(self) -> float:
        """Scale the gradients down to the largest norm that is allowed; their norm before, over all shards."""
        norm = nn.utils.clip_grad_norm_([p for _, p in self._named], self.options.clip)
        return float(whole(norm))

    def step(self, rate: float) -> None:
        """Step with the gradients and forget them."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate * group["share"]
            part.step()
            part.zero_grad(set_to_none=True)
        if self.options.average:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        """Move the averages, which begin as the weights after the first step."""
        for part in self._parts:
            for parameter, state in part.state.items():
                if "average" in state:
                    state["average"].lerp_(parameter, 1 - self.options.average)
                else:
                    state["average"] = parameter.detach().clone()

    def averages(self) -> dict[str, Tensor]:
        """The averaged weights by name, whole on every rank; none before the first step."""
        return {
            name: whole(part.state[parameter]["average"])
            for name, parameter in self._named
            for part in self._parts
            if "average" in part.state.get(parameter, {})
        }

    def state(self) -> dict[str, Tensor]:
        """`<parameter>/<what>` -> tensor; this rank's shard of it."""
        return {
            f"{name}/{what}": local(tensor)
            for name, parameter in self._named
            for part in self._parts
            for what, tensor in part.state.get(parameter, {}).items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take the whole state, of which a rank keeps its shard."""
        for name, parameter in self._named:
            prefix = f"{name}/"
            found = {
                key.removeprefix(prefix): like(value, parameter)
                for key, value in state.items()
                if key.startswith(prefix)
            }
            if found:
                part = next(
                    p for p in self._parts if any(parameter is q for g in p.param_groups for q in g["params"])
                )
                part.state[parameter] = found
