"""The fused attention on CPUs: PyTorch's flash kernel, which also gives the log-sum-exp.

The operators are private to PyTorch; tests/drafter/test_attention.py compares every result with the plain
form, so a change of theirs is seen. Grouped key/value heads, float32, float64 and bfloat16 are taken as
they are. The kernel's causal mask starts at the top left, so only squares are causal (merge.blocks).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import Own, Run
from .merge import Kernel, attend_merged


def _as_batch(x_mJD: Tensor) -> Tensor:
    """[1, J, m, D], no copy."""
    return x_mJD.transpose(0, 1).unsqueeze(0)


def _forward(q_mQD: Tensor, k_nKD: Tensor, v_nKD: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        _as_batch(q_mQD), _as_batch(k_nKD), _as_batch(v_nKD), 0.0, causal
    )
    return mixed[0].transpose(0, 1), lse[0].transpose(0, 1)


def _backward(
    grad_mQD: Tensor,
    q_mQD: Tensor,
    k_nKD: Tensor,
    v_nKD: Tensor,
    mixed_mQD: Tensor,
    lse_mQ: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        _as_batch(grad_mQD),
        _as_batch(q_mQD),
        _as_batch(k_nKD),
        _as_batch(v_nKD),
        _as_batch(mixed_mQD),
        lse_mQ.transpose(0, 1).unsqueeze(0),
        0.0,
        causal,
    )
    grad_q, grad_k, grad_v = (grad[0].transpose(0, 1) for grad in grads)
    return grad_q, grad_k, grad_v


KERNEL = Kernel(_forward, _backward)


def attend_cpu(
    queries_SQD: Tensor, keys_NKD: Tensor, values_NKD: Tensor, own: Own, runs: Sequence[Run]
) -> Tensor:
    """attention.attend on a CPU."""
    return attend_merged(KERNEL, queries_SQD, keys_NKD, values_NKD, own, runs)
