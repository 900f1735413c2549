"""The unrolled forward: step k of every slot from step k-1, for training and for the walk.

Shapes: N step-0 slots, S slots of a step, H draft hidden.
"""

from __future__ import annotations

from torch import Tensor

from .attention import Backend, attend, choose
from .batch import Batch
from .network import Drafter
from .rope import Rotary, rotate


def unroll(drafter: Drafter, rotary: Rotary, batch: Batch, attention: Backend | None = None) -> list[Tensor]:
    """The layer's pre-norm output [S_k, H] of each step k of the batch; the list ends where S_k is empty.

    attention: of attention.choose; None for what `auto` gives on the batch's device.
    """
    attention = attention or choose(
        "auto", batch.aux_NAG.device, drafter.fc.weight.dtype, drafter.config.head_dim
    )
    layer = drafter.midlayer
    cos_PD, sin_PD = rotary.table(batch.num_positions, batch.aux_NAG.dtype)
    outputs: list[Tensor] = []
    own: list[tuple[Tensor, Tensor]] = []
    hidden_NH = drafter.fuse(batch.aux_NAG)
    input_N2H, residual_NH = layer.enter(drafter.embed(batch.ids_N), hidden_NH)
    keys_NKD, values_NKD = layer.keys_values(input_N2H)
    keys_NKD = rotate(keys_NKD, cos_PD[batch.positions_N], sin_PD[batch.positions_N])
    for k, step in enumerate(batch.steps):
        if not len(step):
            break
        cos_SD, sin_SD = cos_PD[step.positions_S], sin_PD[step.positions_S]
        if k == 0:
            input_S2H, residual_SH = input_N2H[step.keep_S], residual_NH[step.keep_S]
        else:
            hidden_SH = drafter.fed_back(outputs[-1])[step.keep_S]
            input_S2H, residual_SH = layer.enter(drafter.embed(step.ids_S), hidden_SH)
            keys_SKD, values_SKD = layer.keys_values(input_S2H)
            own = [(keys[step.keep_S], values[step.keep_S]) for keys, values in own]
            own.append((rotate(keys_SKD, cos_SD, sin_SD), values_SKD))
        queries_SQD = rotate(layer.queries(input_S2H), cos_SD, sin_SD)
        mixed_SQD = attend(queries_SQD, keys_NKD, values_NKD, own, step.runs, attention)
        outputs.append(layer.leave(residual_SH, mixed_SQD))
    return outputs
