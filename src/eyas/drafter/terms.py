"""Which slots a draft step works on, and which of them carry a term of the loss.

Slot t of a conversation drafts, at step k, the token x_{t+2+k}. It works at step k iff x_{t+1} ..
x_{t+2+k} are all labels: a drafter starts only after the target generated x_{t+1}, and nothing is
drafted past a turn's end. S_k is the set of those slots. C_k, the terms, are those of S_k whose
teacher h_{t+1+k} has its argmax inside the draft vocabulary. S_{k+1} is a subset of S_k.
Source: docs/design.md section 5. Other trainers gate by mask[t+k] (EAGLE, SpecForge) or mask[t+1+k]
(AutoModel); both train slots that serving never uses and miss some that it does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def slot_lives(mask_T: Tensor, num_steps: int) -> Tensor:
    """[T] int64: in how many of the steps 0 .. num_steps-1 each slot works; slot t is in S_k iff life > k."""
    mask = mask_T.bool().numpy()
    length = len(mask)
    stops = np.where(mask, length, np.arange(length))
    next_stop = np.append(np.minimum.accumulate(stops[::-1])[::-1], length)
    labels_ahead = next_stop[1:] - np.arange(1, length + 1)
    return torch.from_numpy(np.clip(labels_ahead - 1, 0, num_steps))


def covered(teacher_T: Tensor, t2d_V: Tensor) -> Tensor:
    """[T] bool: the teacher's argmax at a position is there and in the draft vocabulary."""
    return (teacher_T >= 0) & t2d_V[teacher_T.clamp(min=0)]


def term_counts(mask_T: Tensor, teacher_T: Tensor, t2d_V: Tensor, num_steps: int) -> list[int]:
    """|C_k| of one row for each step."""
    lives_T = slot_lives(mask_T, num_steps)
    inside_T = covered(teacher_T, t2d_V)
    counts = []
    for k in range(num_steps):
        slots = torch.nonzero(lives_T > k).flatten()
        counts.append(int(inside_T[slots + 1 + k].sum()))
    return counts
