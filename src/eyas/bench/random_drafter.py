"""A drafter of the planned shape with random weights: it costs what a trained one costs and is never right.

It measures the round cost before anything is trained, and tests that wrong drafts change no output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.init import init_random
from eyas.drafter.network import Drafter


def random_drafter(
    config: DrafterConfig, target_ids_R: Tensor, embedding_VH: Tensor | None, seed: int = 0
) -> Drafter:
    """embedding_VH: the target's, needed unless the drafter has its own; it is shared, not copied."""
    drafter = Drafter(config)
    init_random(drafter, seed)
    drafter.set_vocabulary(target_ids_R.to(torch.int64))
    if not config.has_own_embedding:
        assert embedding_VH is not None
        drafter.share_embedding(embedding_VH)
    return drafter.requires_grad_(False).eval()
