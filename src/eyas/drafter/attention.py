"""Attention of the unrolled draft steps: step-0 keys s <= t of the same conversation, then own-slot keys.

At step k the query of slot t sees the step-0 keys of slots 0 .. t of its conversation and, of steps
1 .. k, only the key of its own slot; one softmax goes over all of them. Source: the training-time test
of EAGLE-3 (SafeAILab/EAGLE, traineagle3/cnets.py). No T x (T * steps) mask or score matrix is built.

Three ways compute it, named in BACKENDS; `choose` says which. `plain` is the reference: it holds the
scores of one run. The others split a run into a rectangle of earlier keys and a causal square, which
fused kernels take with their log-sum-exp, and join the own-slot columns by log-sum-exp (merge.py).

Shapes: S query slots, N step-0 slots, J steps 1..k, Q query heads, K key/value heads, D head
dimension, G = Q / K query heads of a group, m queries and n keys of one run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from eyas.core.errors import EyasError

Backend = Literal["plain", "cpu_fused", "cuda_flash", "cuda_flex"]

BACKENDS: dict[Backend, str] = {
    "plain": "scores of one run of slots at a time, [heads, m, n]; any device, exact, the reference",
    "cpu_fused": "PyTorch's flash kernel for CPUs, log-sum-exp merge",
    "cuda_flash": "PyTorch's flash kernel for CUDA (float16, bfloat16), log-sum-exp merge",
    "cuda_flex": "flex_attention compiled with blocks that fit the device's shared memory (float32 on CUDA)",
}


_FLASH_WIDTH = 256
"""Largest head dimension of the flash kernel on CUDA."""


@dataclass(frozen=True)
class Run:
    """Consecutive slots of one turn: queries [start, stop) see keys from `first_key` on, each up to its own.

    own_key is the place of query `start` among the step-0 keys; the next query's own key is the next.
    """

    start: int
    stop: int
    first_key: int
    own_key: int

    @property
    def last_key(self) -> int:
        """One past the last key that any query of the run sees."""
        return self.own_key + self.stop - self.start


Own = Sequence[tuple[Tensor, Tensor]]
Attend = Callable[[Tensor, Tensor, Tensor, Own, Sequence[Run]], Tensor]


def choose(
    wish: str, device: torch.device, dtype: torch.dtype, head_dim: int, shared_bytes: int | None = None
) -> Backend:
    """The backend for a device, a number type and a head dimension. wish: `auto` or a backend's name.

    shared_bytes: of a block of threads on CUDA; None asks the device. Where `auto` has to take the plain form
    on a GPU, standard error says so. Raises EyasError when the wish does not run there; nothing else is taken
    in its place.
    """
    fused = _fused(device, dtype, head_dim, shared_bytes)
    if wish == "auto" and fused is None and device.type == "cuda":
        print(
            f"train: no fused attention for head dimension {head_dim} in {_plain(dtype)} fits this GPU's shared "
            "memory; the plain form is used, with the scores of a whole turn in memory",
            file=sys.stderr,
            flush=True,
        )
    if wish == "auto":
        return fused or "plain"
    if wish == "plain" or wish == fused:
        return cast(Backend, wish)
    raise EyasError(
        f"attention `{wish}` does not run on {device.type} in {_plain(dtype)} with head dimension {head_dim}",
        expected=", ".join(["auto", "plain", *([fused] if fused else [])]),
        found=wish,
        mend="set training.attention to auto",
    )


def _fused(
    device: torch.device, dtype: torch.dtype, head_dim: int, shared_bytes: int | None
) -> Backend | None:
    if device.type == "cpu":
        return "cpu_fused"
    if device.type != "cuda":
        return None
    if dtype in (torch.float16, torch.bfloat16):
        return "cuda_flash" if head_dim <= _FLASH_WIDTH and head_dim % 8 == 0 else None
    from .attention_cuda import shared_limit, tiles_for

    limit = shared_limit(device) if shared_bytes is None else shared_bytes
    return "cuda_flex" if tiles_for(head_dim, dtype.itemsize, limit) else None


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def attend(
    queries_SQD: Tensor,
    keys_NKD: Tensor,
    values_NKD: Tensor,
    own: Own,
    runs: Sequence[Run],
    backend: Backend = "plain",
) -> Tensor:
    """The mixed values [S, Q, D].

    queries and keys are rotated. own: (keys, values), each [S, K, D], of steps 1..k at the queries' own
    slots. Every query belongs to exactly one run, and the runs are in the order of the queries.
    """
    return _implementation(backend)(queries_SQD, keys_NKD, values_NKD, own, runs)


def _implementation(backend: Backend) -> Attend:
    if backend == "cpu_fused":
        from .attention_cpu import attend_cpu

        return attend_cpu
    if backend in ("cuda_flash", "cuda_flex"):
        from .attention_cuda import attend_flash, attend_flex

        return attend_flash if backend == "cuda_flash" else attend_flex
    return attend_plain


def attend_plain(
    queries_SQD: Tensor, keys_NKD: Tensor, values_NKD: Tensor, own: Own, runs: Sequence[Run]
) -> Tensor:
    """The reference: one run after the other, each with all of its scores."""
    parts = [
        _attend_run(
            queries_SQD[run.start : run.stop],
            keys_NKD[run.first_key : run.last_key],
            values_NKD[run.first_key : run.last_key],
            [(keys[run.start : run.stop], values[run.start : run.stop]) for keys, values in own],
        )
        for run in runs
    ]
    return torch.cat(parts) if len(parts) != 1 else parts[0]


def _attend_run(q_mQD: Tensor, k_nKD: Tensor, v_nKD: Tensor, own: Own) -> Tensor:
    """All scores of one run at once, [K, G, m, n + J]."""
    m, heads, width = q_mQD.shape
    n, groups, _ = k_nKD.shape
    q_mKGD = q_mQD.unflatten(1, (groups, heads // groups)) * width**-0.5
    q_KGmD = q_mKGD.permute(1, 2, 0, 3)
    scores = q_KGmD @ k_nKD.permute(1, 2, 0).unsqueeze(1)
    ahead_mn = torch.ones(m, n, dtype=torch.bool, device=scores.device).triu(n - m + 1)
    scores = scores.masked_fill(ahead_mn, -torch.inf)
    if not own:
        weights = scores.softmax(-1)
        return (weights @ v_nKD.transpose(0, 1).unsqueeze(1)).permute(2, 0, 1, 3).reshape(m, heads, width)
    own_k_JmKD = torch.stack([keys for keys, _ in own])
    own_v_JmKD = torch.stack([values for _, values in own])
    own_scores = torch.einsum("mkgd,jmkd->kgmj", q_mKGD, own_k_JmKD)
    weights = torch.cat([scores, own_scores], dim=-1).softmax(-1)
    causal, diagonal = weights.split((n, len(own)), dim=-1)
    mixed_KGmD = causal @ v_nKD.transpose(0, 1).unsqueeze(1)
    mixed_mKGD = mixed_KGmD.permute(2, 0, 1, 3) + torch.einsum("kgmj,jmkd->mkgd", diagonal, own_v_JmKD)
    return mixed_mKGD.reshape(m, heads, width)
