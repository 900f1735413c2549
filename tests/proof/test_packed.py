"""Packing changes nothing: a packed step equals the single rows, in loss, gradients, outputs and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.drafter.batch import make_batch
from eyas.drafter.loss import batch_loss
from eyas.drafter.objectives import LossSpec, term_shares
from eyas.drafter.rope import Rotary
from eyas.drafter.unroll import unroll
from tiny import HIDDEN, tiny_drafter, tiny_row, tiny_teacher

DESIGN = LossSpec()
CASES = Path(__file__).parents[1] / "cases" / "inputs"


def gradients(
    groups: list, drafter, teacher, counts: list[int], spec: LossSpec = DESIGN, tokens: int = 0
) -> dict[str, torch.Tensor]:
    """The gradient summed over groups of rows, each a batch of its own, all sharing the global N_k."""
    drafter.zero_grad()
    for rows in groups:
        batch = make_batch(rows, drafter.t2d, len(counts), spec.preset)
        outputs = unroll(drafter, Rotary(drafter.config), batch)
        if outputs:
            batch_loss(drafter, outputs, batch, teacher, spec, counts, tokens).loss.backward()
    return {name: p.grad.clone() for name, p in drafter.named_parameters() if p.grad is not None}


@given(
    masks=st.lists(st.lists(st.sampled_from([0, 1, 1]), min_size=3, max_size=20), min_size=2, max_size=6),
    steps=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=30, deadline=None)
def test_packed_gradients_equal_the_sum_of_single_rows(masks: list[list[int]], steps: int, seed: int) -> None:
    drafter = tiny_drafter(seed, draft_vocab_size=17)
    teacher, head = tiny_teacher(drafter, seed)
    rows = [tiny_row(mask, head, seed + i) for i, mask in enumerate(masks)]
    counts = make_batch(rows, drafter.t2d, steps).term_counts
    single = gradients([[row] for row in rows], drafter, teacher, counts)
    packed = gradients([rows], drafter, teacher, counts)
    turned = gradients([rows[::-1]], drafter, teacher, counts)
    split = gradients([rows[:1], rows[1:]], drafter, teacher, counts)
    assert single.keys() == packed.keys()
    for name, expected in single.items():
        for found in (packed, turned, split):
            torch.testing.assert_close(
                found[name], expected, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("objective", ["cross_entropy", "lk_alpha", "lk_lambda"])
@pytest.mark.parametrize("preset", ["eyas", "eagle", "specforge", "automodel"])
def test_no_objective_and_no_preset_depends_on_the_packing(objective: str, preset: str) -> None:
    drafter = tiny_drafter(3, draft_vocab_size=17)
    teacher, head = tiny_teacher(drafter, 3)
    masks = [[0, 0, 1, 1, 1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 0, 0, 0]]
    rows = [tiny_row(mask, head, 3 + i) for i, mask in enumerate(masks)]
    counts = make_batch(rows, drafter.t2d, 3, preset).term_counts
    spec, tokens = LossSpec(objective=objective, preset=preset), sum(len(row) for row in rows)
    single = gradients([[row] for row in rows], drafter, teacher, counts, spec, tokens)
    for layout in ([rows], [rows[:1], rows[1:]], [rows[::-1]]):
        for name, found in gradients(layout, drafter, teacher, counts, spec, tokens).items():
            torch.testing.assert_close(found, single[name], rtol=1e-9, atol=1e-12)


def test_c038_the_second_conversation_is_the_same_whatever_stands_before_it() -> None:
    cases = [json.loads(line) for line in (CASES / "C038.packed_rows.jsonl").read_text().splitlines()]
    drafter = tiny_drafter(vocab_size=100)
    aux = torch.randn(100, 3 * HIDDEN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, head = tiny_teacher(drafter)
    second = []
    for case in cases:
        if "pad_to" in case:
            continue  # packs are ragged here: there is no padding to leak
        rows, start = [], 0
        for length in case["document_lengths"]:
            ids = case["input_ids"][start : start + length]
            row = tiny_row([0] + [1] * (length - 1), head)
            row.input_ids_T[:] = torch.tensor(ids)
            row.aux_TAH[:] = aux[row.input_ids_T]
            rows.append(row)
            start += length
        batch = make_batch(rows, drafter.t2d, 3)
        outputs = unroll(drafter, Rotary(drafter.config), batch)
        last = len(rows) - 1
        second.append([out[step.rows_S == last] for out, step in zip(outputs, batch.steps, strict=True)])
        positions = json.loads((CASES / "C038.expected.json").read_text())["positions"]
        if len(rows) == 2:
            spans = [positions[:6], positions[6:]]
            got = [batch.positions_N[: len(batch.positions_N) // 2 + 1].tolist(), batch.positions_N.tolist()]
            assert got[1] == spans[0][:-2] + spans[1][:-2], "positions must restart in each conversation"
    for other in second[1:]:
        for k, (found, expected) in enumerate(zip(other, second[0], strict=True)):
            assert len(expected)
            torch.testing.assert_close(
                found, expected, rtol=0, atol=1e-13, msg=lambda m, k=k: f"draft step {k}: {m}"
            )


def test_c039_the_loss_is_divided_by_the_count_of_the_whole_step() -> None:
    case = json.loads((CASES / "C039.losses.json").read_text())
    expected = json.loads((CASES / "C039.expected.json").read_text())
    rows = case["rank_0"] + case["rank_1"]
    count = sum(sum(row["mask"]) for row in rows)
    assert count == expected["supervised_tokens"]
    (share,) = term_shares([count], 0.8)
    for layout in ([rows], [rows[:2], rows[2:]], [[row] for row in rows]):
        total = sum(
            sum(loss * share for loss, used in zip(row["loss"], row["mask"], strict=True) if used)
            for part in layout
            for row in part
        )
        assert total == pytest.approx(expected["per_token_mean"], abs=1e-6)


def test_c039_rows_without_a_term_do_no_harm() -> None:
    drafter = tiny_drafter(draft_vocab_size=17)
    teacher, head = tiny_teacher(drafter)
    rows = [
        tiny_row([0, 0, 0, 0, 0], head),
        tiny_row([0, 1, 1, 1, 1, 1, 1], head),
        tiny_row([0, 1, 0, 1, 0], head),
    ]
    counts = make_batch(rows, drafter.t2d, 2).term_counts
    alone = gradients([[rows[1]]], drafter, teacher, counts)
    for name, found in gradients([rows], drafter, teacher, counts).items():
        assert found.isfinite().all()
        torch.testing.assert_close(found, alone[name], rtol=1e-12, atol=1e-14)


def test_prompt_slots_give_exactly_what_the_full_computation_gives() -> None:
    """Queries for every slot, later steps for every slot, and one explicit mask over all keys."""
    drafter = tiny_drafter()
    _, head = tiny_teacher(drafter)
    row = tiny_row([0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1], head)
    batch = make_batch([row], drafter.t2d, 3)
    sparse = unroll(drafter, Rotary(drafter.config), batch)
    full = fully_unrolled(drafter, row.input_ids_T, row.aux_TAH, 3)
    for k, (step, found) in enumerate(zip(batch.steps, sparse, strict=True)):
        torch.testing.assert_close(found, full[k][step.positions_S - k], rtol=1e-11, atol=1e-12)


def fully_unrolled(drafter, ids_T: torch.Tensor, aux_TAG: torch.Tensor, steps: int) -> list[torch.Tensor]:
    from eyas.drafter.rope import rotate

    layer, length = drafter.midlayer, len(ids_T)
    cos, sin = Rotary(drafter.config).table(length + steps, torch.float64)
    hidden, keys, values, outputs = drafter.fuse(aux_TAG), [], [], []
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    for k in range(steps):
        rolled = torch.cat([ids_T[1 + k :], torch.zeros(1 + k, dtype=torch.int64)])
        entered, residual = layer.enter(drafter.embed(rolled), hidden)
        new_keys, new_values = layer.keys_values(entered)
        at = torch.arange(length) + k
        keys.append(rotate(new_keys, cos[at], sin[at]))
        values.append(new_values)
        mask = torch.cat([seen] + [torch.eye(length, dtype=torch.bool)] * k, dim=1)
        group = drafter.config.num_heads // drafter.config.num_kv_heads
        mixed = torch.nn.functional.scaled_dot_product_attention(
            rotate(layer.queries(entered), cos[at], sin[at]).transpose(0, 1),
            torch.cat(keys).repeat_interleave(group, 1).transpose(0, 1),
            torch.cat(values).repeat_interleave(group, 1).transpose(0, 1),
            attn_mask=mask,
        )
        hidden = layer.leave(residual, mixed.transpose(0, 1))
        outputs.append(hidden)
        hidden = drafter.fed_back(hidden)
    return outputs
