"""The fused attention gives what the plain form gives, forward and backward, for every layout of turns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.core.errors import EyasError
from eyas.drafter.attention import BACKENDS, Run, attend, choose
from eyas.drafter.attention_cuda import Tiles, kernel_options, key_ranges, tiles_for
from eyas.drafter.merge import join_own

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
H100, SMALL = 232_448, 101_376
"""Shared memory that a block may ask for: data-centre GPUs, and workstation GPUs with about 100 KB."""
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Run], int, int]:
    """(runs, query slots, step-0 slots) of some conversations with some turns each."""
    runs, slots, keys = [], 0, 0
    for turns in draw(
        st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=3), max_size=3)
    ):
        first = keys
        for prompt, answer in turns:
            keys += prompt
            runs.append(Run(slots, slots + answer, first, keys))
            slots, keys = slots + answer, keys + answer
    return runs, slots, keys


def everything(backend: str, runs: list[Run], tensors: list[torch.Tensor], upstream: torch.Tensor) -> list:
    """The mixed values and the gradients of queries, keys, values and own-slot pairs."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    own = list(zip(leaves[3::2], leaves[4::2], strict=True))
    mixed = attend(*leaves[:3], own, runs, backend)
    mixed.backward(upstream)
    return [mixed.detach(), *(leaf.grad for leaf in leaves)]


@given(
    layout=layouts(),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (3, 3), (4, 1)]),
    width=st.sampled_from([4, 16, 64]),
    own=st.integers(0, 6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=80, deadline=None)
def test_fused_equals_plain(
    layout: tuple[list[Run], int, int],
    heads: tuple[int, int],
    width: int,
    own: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    runs, slots, keys = layout
    if not runs:
        return
    generator = torch.Generator().manual_seed(seed)
    shapes = [
        (slots, heads[0], width),
        *[(keys, heads[1], width)] * 2,
        *[(slots, heads[1], width)] * (2 * own),
    ]
    tensors = [2 * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    upstream = torch.randn(shapes[0], generator=generator, dtype=dtype)
    expected = everything("plain", runs, tensors, upstream)
    found = everything("cpu_fused", runs, tensors, upstream)
    names = ["mixed", "queries", "keys", "values", *(f"own {i // 2} {'kv'[i % 2]}" for i in range(2 * own))]
    for name, a, b in zip(names, found, expected, strict=True):
        scale = float(b.abs().max()) + 1.0
        error = float((a - b).abs().max()) / scale
        assert error < TOLERANCE[dtype], f"{name} of the fused attention is off by {error:.1e} of its size"


def test_scores_far_beyond_the_range_of_exp_do_not_overflow() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, own_k, own_v = (100 * torch.randn(30, 2, 8, generator=generator) for _ in range(5))
    runs = [Run(0, 30, 0, 0)]
    tensors, upstream = [q, k, v, own_k, own_v], torch.ones(30, 2, 8)
    for a, b in zip(
        everything("cpu_fused", runs, tensors, upstream),
        everything("plain", runs, tensors, upstream),
        strict=True,
    ):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-2)


def test_the_own_slot_columns_take_part_in_the_one_softmax() -> None:
    """An own-slot key that wins everything leaves nothing for the step-0 keys, in value and in gradient."""
    q = torch.zeros(5, 1, 4)
    q[..., 0] = 100.0
    k, v = torch.zeros(5, 1, 4), torch.ones(5, 1, 4)
    own_k, own_v = torch.zeros(5, 1, 4), torch.full((5, 1, 4), 7.0)
    own_k[..., 0] = 100.0
    mixed, _, _, grad_v, _, grad_own = everything(
        "cpu_fused", [Run(0, 5, 0, 0)], [q, k, v, own_k, own_v], torch.ones(5, 1, 4)
    )
    assert torch.equal(mixed, own_v)
    assert not grad_v.any()
    assert torch.equal(grad_own, torch.ones(5, 1, 4))


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", torch.float32, "cpu_fused"),
        ("cpu", torch.float64, "cpu_fused"),
        ("cuda", torch.bfloat16, "cuda_flash"),
        ("cuda", torch.float32, "cuda_flex"),
        ("mps", torch.float32, "plain"),
    ],
)
def test_the_choice_follows_from_device_and_number_type(
    device: str, dtype: torch.dtype, expected: str
) -> None:
    assert choose("auto", torch.device(device), dtype, 128, H100) == expected
    assert choose("plain", torch.device(device), dtype, 128, H100) == "plain"
    assert expected in BACKENDS


def test_a_backend_that_does_not_run_there_is_refused_not_replaced() -> None:
    with pytest.raises(EyasError) as caught:
        choose("cuda_flash", CPU, torch.bfloat16, 128)
    assert "training.attention" in str(caught.value)


@given(
    head_dim=st.integers(8, 256),
    element=st.sampled_from([2, 4]),
    limit=st.sampled_from([49_152, SMALL, H100]),
)
def test_tiles_fit_the_shared_memory_that_they_were_chosen_for(
    head_dim: int, element: int, limit: int
) -> None:
    tiles = tiles_for(head_dim, element, limit)
    if tiles is None:
        assert Tiles(16, 16, 1).shared_bytes(head_dim, element) > limit
    else:
        assert tiles.shared_bytes(head_dim, element) <= limit
        more = tiles_for(head_dim, element, 2 * limit)
        assert more is not None
        assert more.queries * more.keys >= tiles.queries * tiles.keys


def test_a_gpu_with_little_shared_memory_gets_smaller_tiles_not_a_failure_at_launch() -> None:
    large, small = tiles_for(128, 4, H100), tiles_for(128, 4, SMALL)
    assert large == Tiles(64, 64, 2)
    assert small == Tiles(32, 32, 1)
    assert (
        Tiles(32, 32, 2).shared_bytes(128, 4)
        == (2 * 32 * 128 + 2 * 32 * 128 * 2 + 32 * 32) * 4
        == SMALL + 1024
    )
    options = kernel_options(small)
    assert {options[name] for name in options if name.startswith("BLOCK")} == {32}


def test_where_nothing_fits_the_plain_form_is_taken_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose("auto", CUDA, torch.float32, 128, 8_192) == "plain"
    assert "plain form is used" in capsys.readouterr().err
    with pytest.raises(EyasError):
        choose("cuda_flex", CUDA, torch.float32, 128, 8_192)


@given(layout=layouts(), seed=st.integers(0, 1000), own=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_the_pieces_of_the_cuda_form_give_the_plain_result(
    layout: tuple[list[Run], int, int], seed: int, own: int
) -> None:
    """flex_attention itself needs a GPU; its key ranges and the join by autograd are tried with dense scores."""
    runs, slots, keys = layout
    if not runs:
        return
    generator = torch.Generator().manual_seed(seed)
    shapes = [(slots, 4, 8), *[(keys, 2, 8)] * 2, *[(slots, 2, 8)] * (2 * own)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    upstream = torch.randn(shapes[0], generator=generator, dtype=torch.float64)
    expected = everything("plain", runs, tensors, upstream)
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    first_S, own_S = key_ranges(runs, slots)
    places = torch.arange(keys)
    seen_SN = (places >= first_S[:, None]) & (places <= own_S[:, None])
    scores = torch.einsum("sqd,nqd->sqn", leaves[0], leaves[1].repeat_interleave(2, 1)) * 8**-0.5
    scores = scores.masked_fill(~seen_SN[:, None], -torch.inf)
    mixed = torch.einsum("sqn,nqd->sqd", scores.softmax(-1), leaves[2].repeat_interleave(2, 1))
    pairs = list(zip(leaves[3::2], leaves[4::2], strict=True))
    mixed = join_own(leaves[0], pairs, mixed, scores.logsumexp(-1))
    mixed.backward(upstream)
    for a, b in zip([mixed.detach(), *(leaf.grad for leaf in leaves)], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
