"""The fused attention on CUDA. Not yet run on a GPU: docs list it so. Importing it needs none.

float16 and bfloat16: PyTorch's flash kernel, run by run, joined as in merge.py. float32: flex_attention,
compiled, over all runs at once with a block mask of [S / 128, N / 128] entries; its log-sum-exp carries
gradient, so the own-slot columns are joined by autograd.

A compiled kernel keeps its tiles in shared memory. Tiles that do not fit fail only when the kernel is first
launched, on devices with about 100 KB at head dimensions that pass with 227 KB; so the need is computed
beforehand and the tiles follow from the device's limit.

Shapes as in attention.py.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .attention import Own, Run
from .merge import Kernel, attend_merged, join_own

_CANDIDATES = [(128, 128, 2), (128, 64, 2), (64, 64, 2), (64, 32, 2), (32, 32, 2), (32, 32, 1), (16, 16, 1)]
"""(queries of a tile, keys of a tile, pipeline stages), best first."""
_MASK_BLOCK = 128
"""Granularity of the block mask; tiles divide it."""


@dataclass(frozen=True)
class Tiles:
    """What a kernel holds at once."""

    queries: int
    keys: int
    stages: int

    def shared_bytes(self, head_dim: int, element_bytes: int) -> int:
        """Predicted need of the backward pass, the larger of the two: a tile of queries and one of their
        gradient stay; tiles of keys and of values come in `stages` copies; so does the tile of scores' gradient
        that the second product reads. Triton rounds the head dimension up to a power of two."""
        width = 1 << (head_dim - 1).bit_length()
        resident, streamed = 2 * self.queries * width, 2 * self.keys * width * self.stages
        return (resident + streamed + self.queries * self.keys) * element_bytes


def tiles_for(head_dim: int, element_bytes: int, limit: int) -> Tiles | None:
    """The best tiles whose predicted need is within `limit` bytes of shared memory; None if none are."""
    for candidate in _CANDIDATES:
        tiles = Tiles(*candidate)
        if tiles.shared_bytes(head_dim, element_bytes) <= limit:
            return tiles
    return None


def shared_limit(device: torch.device) -> int:
    """Bytes of shared memory that one block of threads may ask for."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]


def attend_flash(
    queries_SQD: Tensor, keys_NKD: Tensor, values_NKD: Tensor, own: Own, runs: Sequence[Run]
) -> Tensor:
    """attention.attend in float16 or bfloat16."""
    return attend_merged(FLASH, queries_SQD, keys_NKD, values_NKD, own, runs)


def _flash_forward(q_mQD: Tensor, k_nKD: Tensor, v_nKD: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    m, n = len(q_mQD), len(k_nKD)
    mixed, lse, *_ = torch.ops.aten._flash_attention_forward(
        q_mQD[None], k_nKD[None], v_nKD[None], None, None, m, n, 0.0, causal, False
    )
    return mixed[0], lse[0, :, :m].transpose(0, 1)


def _flash_backward(
    grad_mQD: Tensor,
    q_mQD: Tensor,
    k_nKD: Tensor,
    v_nKD: Tensor,
    mixed_mQD: Tensor,
    lse_mQ: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    m, n = len(q_mQD), len(k_nKD)
    unused = torch.empty(
        2, dtype=torch.uint64, device=q_mQD.device
    )  # no dropout: the random state is not read
    grad_q, grad_k, grad_v = torch.ops.aten._flash_attention_backward(
        grad_mQD[None],
        q_mQD[None],
        k_nKD[None],
        v_nKD[None],
        mixed_mQD[None],
        lse_mQ.transpose(0, 1).contiguous()[None],
        None,
        None,
        m,
        n,
        0.0,
        causal,
        unused,
        unused,
    )
    return grad_q[0], grad_k[0], grad_v[0]


FLASH = Kernel(_flash_forward, _flash_backward)


def attend_flex(
    queries_SQD: Tensor, keys_NKD: Tensor, values_NKD: Tensor, own: Own, runs: Sequence[Run]
) -> Tensor:
    """attention.attend in float32."""
    device, head_dim = queries_SQD.device, queries_SQD.shape[-1]
    tiles = tiles_for(head_dim, queries_SQD.element_size(), shared_limit(device))
    assert tiles is not None, "attention.choose takes the plain form where no tiles fit"
    mixed, lse = _compiled_flex()(
        *(x.transpose(0, 1)[None] for x in (queries_SQD, keys_NKD, values_NKD)),
        block_mask=_block_mask(runs, len(queries_SQD), len(keys_NKD), device),
        enable_gqa=queries_SQD.shape[1] != keys_NKD.shape[1],
        return_lse=True,
        kernel_options=kernel_options(tiles),
    )
    return join_own(queries_SQD, own, mixed[0].transpose(0, 1), lse[0].transpose(0, 1))


def kernel_options(tiles: Tiles) -> dict[str, int]:
    """Forward tiles, and those of the two backward loops (over keys, over queries)."""
    return {
        "BLOCK_M": tiles.queries,
        "BLOCK_N": tiles.keys,
        "BLOCK_M1": tiles.keys,
        "BLOCK_N1": tiles.queries,
        "BLOCK_M2": tiles.queries,
        "BLOCK_N2": tiles.keys,
        "num_stages": tiles.stages,
    }


@functools.cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _block_mask(runs: Sequence[Run], slots: int, keys: int, device: torch.device) -> Any:
    """Query s sees the keys from its conversation's first to its own."""
    from torch.nn.attention.flex_attention import create_block_mask

    first_S, own_S = key_ranges(runs, slots)
    first_S, own_S = first_S.to(device), own_S.to(device)

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= first_S[query]) & (key <= own_S[query])

    return create_block_mask(seen, None, None, slots, keys, device=device, BLOCK_SIZE=_MASK_BLOCK)


def key_ranges(runs: Sequence[Run], slots: int) -> tuple[Tensor, Tensor]:
    """(first key, own key) of every query, [S] int64 each."""
    first_S, own_S = torch.zeros(slots, dtype=torch.int64), torch.zeros(slots, dtype=torch.int64)
    for run in runs:
        first_S[run.start : run.stop] = run.first_key
        own_S[run.start : run.stop] = torch.arange(run.own_key, run.last_key)
    return first_S, own_S
