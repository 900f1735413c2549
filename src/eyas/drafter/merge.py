"""Softmaxes over disjoint keys joined by their log-sum-exp, forward and backward, around a fused kernel.

With L the log-sum-exp over all keys and O the mixed value over all keys, the weight of key j is
exp(s_j - L) and the gradient of its score is exp(s_j - L) * (dO . v_j - dO . O). A flash kernel computes
exactly that from the (O, L) that it is given, so each block's backward is exact for the joint softmax
once it gets the joint O and L instead of its own. Own-slot columns need no kernel.

Shapes: S query slots, N step-0 slots, J own-slot columns, Q query heads, K key/value heads, D head
dimension, G = Q / K, m queries and n keys of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .attention import Run


@dataclass(frozen=True)
class Block:
    """Queries [start, stop) against keys [first, last): all of them, or causally (then a square)."""

    start: int
    stop: int
    first: int
    last: int
    causal: bool


@dataclass(frozen=True)
class Kernel:
    """A fused kernel. forward(q, k, v, causal) -> (mixed [m, Q, D], lse [m, Q]); backward(grad, q, k, v,
    mixed, lse, causal) -> gradients of q, k, v. q [m, Q, D], k and v [n, K, D]; scores scaled by D^-0.5."""

    forward: Callable[..., tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """A causal square for each run, and before it a rectangle where the run does not start its conversation."""
    for run in runs:
        if run.own_key > run.first_key:
            yield Block(run.start, run.stop, run.first_key, run.own_key, causal=False)
        yield Block(run.start, run.stop, run.own_key, run.last_key, causal=True)


def attend_merged(
    kernel: Kernel,
    queries_SQD: Tensor,
    keys_NKD: Tensor,
    values_NKD: Tensor,
    own: Sequence[tuple[Tensor, Tensor]],
    runs: Sequence[Run],
) -> Tensor:
    """attention.attend with the blocks of `runs` computed by `kernel`."""
    flat = [tensor for pair in own for tensor in pair]
    return _Merged.apply(kernel, list(blocks(runs)), queries_SQD, keys_NKD, values_NKD, *flat)


def join_own(
    q_SQD: Tensor, own: Sequence[tuple[Tensor, Tensor]], mixed_SQD: Tensor, lse_SQ: Tensor
) -> Tensor:
    """The own-slot columns joined to (mixed, lse) of the step-0 keys, for autograd: lse carries gradient."""
    if not own:
        return mixed_SQD
    scores_JSQ = _own_scores(q_SQD, [keys for keys, _ in own])
    joint_SQ = torch.cat([lse_SQ.unsqueeze(0), scores_JSQ]).logsumexp(0)
    mixed_SQD = mixed_SQD * (lse_SQ - joint_SQ).exp().unsqueeze(-1)
    for score_SQ, (_, v_SKD) in zip(scores_JSQ, own, strict=True):
        weight_SKG1 = _grouped((score_SQ - joint_SQ).exp().unsqueeze(-1), v_SKD)
        mixed_SQD = mixed_SQD + (weight_SKG1 * v_SKD.unsqueeze(2)).flatten(1, 2)
    return mixed_SQD


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        pieces: list[Block],
        q_SQD: Tensor,
        k_NKD: Tensor,
        v_NKD: Tensor,
        *own: Tensor,
    ) -> Tensor:
        mixed_SQD, lse_SQ = _mix_blocks(kernel, pieces, q_SQD, k_NKD, v_NKD)
        if own:
            mixed_SQD, lse_SQ = _mix_own(q_SQD, own, mixed_SQD, lse_SQ)
        ctx.kernel, ctx.pieces = kernel, pieces
        ctx.save_for_backward(q_SQD, k_NKD, v_NKD, mixed_SQD, lse_SQ, *own)
        return mixed_SQD

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        q_SQD, k_NKD, v_NKD, mixed_SQD, lse_SQ, *own = ctx.saved_tensors
        grad_SQD = upstream[0].contiguous()
        grad_q = torch.zeros_like(q_SQD)
        grad_k, grad_v = torch.zeros_like(k_NKD), torch.zeros_like(v_NKD)
        for piece in ctx.pieces:
            queries, keys = slice(piece.start, piece.stop), slice(piece.first, piece.last)
            parts = ctx.kernel.backward(
                grad_SQD[queries],
                q_SQD[queries],
                k_NKD[keys],
                v_NKD[keys],
                mixed_SQD[queries],
                lse_SQ[queries],
                piece.causal,
            )
            grad_q[queries] += parts[0]
            grad_k[keys] += parts[1]
            grad_v[keys] += parts[2]
        grads_own = _own_backward(grad_SQD, q_SQD, own, mixed_SQD, lse_SQ, grad_q) if own else []
        return (None, None, grad_q, grad_k, grad_v, *grads_own)


def _mix_blocks(
    kernel: Kernel, pieces: Sequence[Block], q_SQD: Tensor, k_NKD: Tensor, v_NKD: Tensor
) -> tuple[Tensor, Tensor]:
    mixed_SQD = torch.empty_like(q_SQD)
    lse_SQ = q_SQD.new_empty(q_SQD.shape[:2], dtype=torch.promote_types(q_SQD.dtype, torch.float32))
    before: tuple[Tensor, Tensor] | None = None
    for piece in pieces:
        queries, keys = slice(piece.start, piece.stop), slice(piece.first, piece.last)
        part = kernel.forward(q_SQD[queries], k_NKD[keys], v_NKD[keys], piece.causal)
        if not piece.causal:
            before = part
            continue
        mixed_SQD[queries], lse_SQ[queries] = part if before is None else _joined(*before, *part)
        before = None
    return mixed_SQD, lse_SQ


def _joined(a_mQD: Tensor, lse_a_mQ: Tensor, b_mQD: Tensor, lse_b_mQ: Tensor) -> tuple[Tensor, Tensor]:
    lse_mQ = torch.logaddexp(lse_a_mQ, lse_b_mQ)
    share_a = (lse_a_mQ - lse_mQ).exp().unsqueeze(-1)
    share_b = (lse_b_mQ - lse_mQ).exp().unsqueeze(-1)
    return (a_mQD * share_a).add_(b_mQD * share_b), lse_mQ


def _grouped(x_SQD: Tensor, like_SKD: Tensor) -> Tensor:
    """[S, K, G, D]: query heads beside the key head that they read."""
    return x_SQD.unflatten(1, (like_SKD.shape[1], -1))


def _own_scores(q_SQD: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """[J, S, Q], scaled."""
    scale = q_SQD.shape[-1] ** -0.5
    scores = [(_grouped(q_SQD, k_SKD) @ k_SKD.unsqueeze(-1)).flatten(1) * scale for k_SKD in keys]
    return torch.stack(scores)


def _mix_own(
    q_SQD: Tensor, own: Sequence[Tensor], mixed_SQD: Tensor, lse_SQ: Tensor
) -> tuple[Tensor, Tensor]:
    keys, values = own[0::2], own[1::2]
    scores_JSQ = _own_scores(q_SQD, keys).to(lse_SQ.dtype)
    joint_SQ = torch.cat([lse_SQ.unsqueeze(0), scores_JSQ]).logsumexp(0)
    mixed_SQD = mixed_SQD * (lse_SQ - joint_SQ).exp().unsqueeze(-1).to(mixed_SQD.dtype)
    weights_JSQ = (scores_JSQ - joint_SQ).exp_().to(mixed_SQD.dtype)
    for weight_SQ, v_SKD in zip(weights_JSQ, values, strict=True):
        weight_SKG1 = _grouped(weight_SQ.unsqueeze(-1), v_SKD)
        _grouped(mixed_SQD, v_SKD).addcmul_(weight_SKG1, v_SKD.unsqueeze(2))
    return mixed_SQD, joint_SQ


def _own_backward(
    grad_SQD: Tensor,
    q_SQD: Tensor,
    own: Sequence[Tensor],
    mixed_SQD: Tensor,
    lse_SQ: Tensor,
    grad_q_SQD: Tensor,
) -> list[Tensor]:
    """Gradients of the own-slot keys and values, pair by pair; the queries' share is added to grad_q."""
    keys, values = own[0::2], own[1::2]
    scale = q_SQD.shape[-1] ** -0.5
    weights_JSQ = (_own_scores(q_SQD, keys).to(lse_SQ.dtype) - lse_SQ).exp_().to(q_SQD.dtype)
    dot_SQ1 = (grad_SQD * mixed_SQD).sum(-1, keepdim=True)
    grads = []
    for weight_SQ, k_SKD, v_SKD in zip(weights_JSQ, keys, values, strict=True):
        grad_SKGD = _grouped(grad_SQD, k_SKD)
        weight_SKG1 = _grouped(weight_SQ.unsqueeze(-1), k_SKD)
        through_SKG1 = grad_SKGD @ v_SKD.unsqueeze(-1)
        slope_SKG1 = weight_SKG1 * (through_SKG1 - _grouped(dot_SQ1, k_SKD)) * scale
        _grouped(grad_q_SQD, k_SKD).addcmul_(slope_SKG1, k_SKD.unsqueeze(2))
        grads.append((slope_SKG1.transpose(2, 3) @ _grouped(q_SQD, k_SKD)).squeeze(2))
        grads.append((weight_SKG1.transpose(2, 3) @ grad_SKGD).squeeze(2))
    return grads
