"""What the draft vocabulary covers of the target's own distribution, and the target's chance of a token.

Both need the target's full head. Its logits exist for a chunk of positions and a block of the vocabulary at a
time, in float32 whatever the head is stored in.

Shapes: L positions, l of a chunk, v ids of a block, V target vocabulary, G target hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .network import shaped_logits
from .target_weights import TargetWeights

POSITIONS, IDS = 256, 8192
"""Of a chunk and of a block."""


@dataclass
class Coverage:
    """Sums over positions whose next token is a label. mass: of the target's probability inside the draft
    vocabulary, at temperature 1. argmax, labels: how often the target's first choice, and the token that came, is
    inside."""

    positions: int = 0
    mass: float = 0.0
    argmax: int = 0
    labels: int = 0

    def add(self, mass_L: Tensor, argmax_L: Tensor, labels_L: Tensor, t2d_V: Tensor) -> None:
        self.positions += len(mass_L)
        self.mass += float(mass_L.double().sum())
        self.argmax += int(t2d_V[argmax_L].sum())
        self.labels += int(t2d_V[labels_L].sum())

    def merge(self, other: Coverage) -> None:
        self.positions += other.positions
        self.mass += other.mass
        self.argmax += other.argmax
        self.labels += other.labels

    def plain(self) -> dict[str, Any]:
        """Shares of the positions, whose number stands beside them."""
        sums = {"mass": self.mass, "argmax": self.argmax, "labels": self.labels}
        shares = {name: round(total / self.positions, 6) for name, total in sums.items() if self.positions}
        return {"positions": self.positions, **shares}


class FullHead:
    """The target's whole head with all that it does to its logits."""

    def __init__(self, weights: TargetWeights, scale: float, soft_cap: float | None) -> None:
        self.rows_VG, self.bias_V = weights.head(), weights.head_bias()
        self.scale, self.soft_cap = scale, soft_cap

    def read(
        self, last_LG: Tensor, next_ids_L: Tensor, t2d_V: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """(mass [L] inside the draft vocabulary at temperature 1, log chance [L] of the token that came at the
        temperature asked for)."""
        chunks = range(0, len(last_LG), POSITIONS)
        parts = [
            self._read_chunk(
                last_LG[at : at + POSITIONS], next_ids_L[at : at + POSITIONS], t2d_V, temperature
            )
            for at in chunks
        ]
        if not parts:
            return torch.empty(0), torch.empty(0)
        masses, chances = zip(*parts, strict=True)
        return torch.cat(masses), torch.cat(chances)

    def _read_chunk(
        self, last_lG: Tensor, next_ids_l: Tensor, t2d_V: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        whole, inside, tempered, came = [], [], [], torch.empty(len(last_lG))
        for first in range(0, len(self.rows_VG), IDS):
            block = slice(first, first + IDS)
            logits_lv = self._logits(last_lG, block)
            whole.append(logits_lv.logsumexp(-1))
            inside.append(logits_lv[:, t2d_V[block]].logsumexp(-1))
            tempered.append((logits_lv / temperature).logsumexp(-1))
            here_l = (next_ids_l >= first) & (next_ids_l < first + logits_lv.shape[1])
            came[here_l] = logits_lv[here_l, next_ids_l[here_l] - first] / temperature
        whole_l, inside_l, tempered_l = (torch.stack(part).logsumexp(0) for part in (whole, inside, tempered))
        return (inside_l - whole_l).exp(), came - tempered_l

    def _logits(self, last_lG: Tensor, block: slice) -> Tensor:
        bias_v = None if self.bias_V is None else self.bias_V[block].float()
        raw_lv = torch.nn.functional.linear(last_lG.float(), self.rows_VG[block].float(), bias_v)
        return shaped_logits(raw_lv, self.scale, self.soft_cap)
