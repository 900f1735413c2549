"""Which slots a draft step works on, and which of them carry a term of the loss.

Slot t of a conversation drafts, at step k, the token x_{t+2+k}. The gate of (t, k) says whether that draft
is trained. The design's gate is that x_{t+1} .. x_{t+2+k} are all labels: a drafter starts only after the
target generated x_{t+1}, and nothing is drafted past a turn's end. S_k, the slots that step k computes,
are those with an open gate at k or later. C_k, the terms, are the slots with an open gate at k whose
teacher h_{t+1+k} has its argmax inside the draft vocabulary. S_{k+1} is a subset of S_k.
Source: docs/design.md section 5.

The presets gate as other trainers do, who train slots that serving never uses and miss some that it does:
`eagle` and `specforge` by mask[t+k] (ids and targets are shifted, the mask is not), `automodel` by
mask[t+1+k]. Where these tools fill up with zeros behind a row's end, or read its last state, there is no
term here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .objectives import Preset

_MASK_SHIFT: dict[Preset, int] = {"eagle": 0, "specforge": 0, "automodel": 1}


def gates(mask_T: Tensor, num_steps: int, preset: Preset = "eyas") -> Tensor:
    """[K, T] bool: whether (t, k) is trained, the draft vocabulary aside."""
    steps_K1 = torch.arange(num_steps).unsqueeze(1)
    if preset == "eyas":
        return _labels_ahead(mask_T) - 1 > steps_K1
    length = len(mask_T)
    slots_KT = torch.arange(length) + steps_K1
    asked_KT = (slots_KT + _MASK_SHIFT[preset]).clamp(max=max(length - 1, 0))
    return mask_T.bool()[asked_KT] & (slots_KT + 2 < length)


def slot_lives(mask_T: Tensor, num_steps: int, preset: Preset = "eyas") -> Tensor:
    """[T] int64: in how many of the steps 0 .. num_steps-1 each slot works; slot t is in S_k iff life > k."""
    if preset == "eyas":
        return (_labels_ahead(mask_T) - 1).clamp(0, num_steps)
    counted_K1 = torch.arange(1, num_steps + 1).unsqueeze(1)
    return (gates(mask_T, num_steps, preset) * counted_K1).amax(0)


def _labels_ahead(mask_T: Tensor) -> Tensor:
    """[T] int64: the number of labels in a row from t+1 on."""
    mask = mask_T.bool().numpy()
    length = len(mask)
    stops = np.where(mask, length, np.arange(length))
    next_stop = np.append(np.minimum.accumulate(stops[::-1])[::-1], length)
    return torch.from_numpy(next_stop[1:] - np.arange(1, length + 1))


def covered(teacher_T: Tensor, t2d_V: Tensor) -> Tensor:
    """[T] bool: the teacher's argmax at a position is there and in the draft vocabulary."""
    return (teacher_T >= 0) & t2d_V[teacher_T.clamp(min=0)]


def term_counts(
    mask_T: Tensor, teacher_T: Tensor, t2d_V: Tensor, num_steps: int, preset: Preset = "eyas"
) -> list[int]:
    """|C_k| of one row for each step."""
    open_KT = gates(mask_T, num_steps, preset)
    inside_T = covered(teacher_T, t2d_V)
    counts = []
    for k, open_T in enumerate(open_KT):
        slots = torch.nonzero(open_T).flatten()
        counts.append(int(inside_T[slots + 1 + k].sum()))
    return counts


def unlabelled_teachers(mask_T: Tensor, num_steps: int, preset: Preset) -> Tensor:
    """The teacher positions that a preset's gate asks for where the next token is no label, so that the
    stored argmax is absent; at most two behind each turn, none for the design's gate."""
    length = len(mask_T)
    asked_T = torch.zeros(length, dtype=torch.bool)
    for k, open_T in enumerate(gates(mask_T, num_steps, preset)):
        asked_T[torch.nonzero(open_T).flatten() + 1 + k] = True
    next_label_T = torch.zeros(length, dtype=torch.bool)
    next_label_T[:-1] = mask_T.bool()[1:]
    return torch.nonzero(asked_T & ~next_label_T).flatten()
