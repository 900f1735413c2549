"""Forward and loss of one part of an optimiser step, as a module that DDP and FSDP2 can wrap."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import choose
from .batch import Batch
from .loss import BatchLoss, TeacherHead, batch_loss
from .network import Drafter, DraftLayer
from .objectives import LossSpec
from .options import TrainOptions
from .rope import Rotary
from .unroll import unroll


class TrainStep(nn.Module):
    """`forward` is the whole of a part, so that sharded weights are gathered once for it."""

    def __init__(self, drafter: Drafter, teacher: TeacherHead, options: TrainOptions) -> None:
        super().__init__()
        self.drafter = drafter
        self.teacher = teacher
        self.options = options
        self.attention = choose(
            options.attention, drafter.d2t.device, product_type(options), drafter.config.head_dim
        )
        self.spec = LossSpec.of(options)
        self.rotary = Rotary(drafter.config)
        drafter.midlayer.training_form = _training_form(drafter.midlayer, options)

    def forward(self, batch: Batch | None, term_counts: Sequence[int], num_tokens: int) -> BatchLoss:
        """term_counts, num_tokens: N_k and tokens of the whole step. None is a part without a term: the loss is 0
        and so is every gradient, which other ranks wait for."""
        if batch is None:
            empty = torch.empty(0, dtype=torch.bool)
            return BatchLoss(self._nothing(), [0.0] * len(term_counts), [empty] * len(term_counts))
        with self._autocast():
            outputs = unroll(self.drafter, self.rotary, batch, self.attention)
        wide = [output_SH.to(batch.last_PG.dtype) for output_SH in outputs]
        return batch_loss(self.drafter, wide, batch, self.teacher, self.spec, term_counts, num_tokens)

    def _nothing(self) -> Tensor:
        trained = [p for p in self.parameters() if p.requires_grad]
        return torch.stack([p.sum() * 0.0 for p in trained]).sum()

    def _autocast(self) -> torch.autocast:
        """Around the layer only: the loss is float32 whatever the layer's products are."""
        device = self.drafter.d2t.device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.options.precision == "bfloat16")


def product_type(options: TrainOptions) -> torch.dtype:
    """The number type of queries, keys and values."""
    return torch.bfloat16 if options.precision == "bfloat16" else torch.float32


def _training_form(layer: DraftLayer, options: TrainOptions) -> Any:
    form: Any = None
    if options.compile:
        form = torch.compile(layer.finish, dynamic=True)
    if options.recompute:
        form = functools.partial(checkpoint, form or layer.finish, use_reentrant=False)
    return form
