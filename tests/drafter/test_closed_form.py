"""The closed-form start finds a linear world without training."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from eyas.drafter.batch import make_batch
from eyas.drafter.closed_form import collect, low_rank, write_closed_form
from eyas.drafter.init import init_random
from eyas.drafter.rope import Rotary
from eyas.drafter.unroll import unroll
from eyas.states.store import StateRow
from tiny import HIDDEN, VOCAB, tiny_drafter, tiny_row, tiny_teacher


def linear_world(
    embedding: torch.Tensor, norm: torch.Tensor, head: torch.Tensor, num_rows: int
) -> list[StateRow]:
    """y_{t+1} = 0.5 y_t + e(x_{t+1}) B with last = y w, and aux_t a fixed image of y_t."""
    generator = torch.Generator().manual_seed(11)
    step = 0.3 * torch.randn(HIDDEN, HIDDEN, generator=generator, dtype=torch.float64)
    image = torch.randn(HIDDEN, 3 * HIDDEN, generator=generator, dtype=torch.float64)
    rows = []
    for i in range(num_rows):
        row = tiny_row([0, 0, *[1] * 28], head, i)
        state = torch.randn(HIDDEN, generator=generator, dtype=torch.float64)
        for t in range(len(row)):
            state = 0.5 * state + rms_norm(embedding[row.input_ids_T[t]], (HIDDEN,)) @ step
            row.last_TH[t] = state * norm
            row.aux_TAH[t] = state @ image
        rows.append(row)
    return rows


def test_every_unrolled_step_begins_as_the_linear_guess_of_the_next_state() -> None:
    drafter = tiny_drafter(head_dim=32, rope_theta=10000.0)
    _, head = tiny_teacher(drafter)
    norm, embedding = drafter.norm.weight.detach().clone(), drafter.embed_tokens.weight.detach()
    init_random(drafter, 0)
    rows = linear_world(embedding, norm, head, 40)
    with torch.no_grad():
        drafter.midlayer.mlp.down_proj.weight.zero_()
        drafter.norm.weight.copy_(norm)
    write_closed_form(drafter, collect(rows, embedding, norm))
    batch = make_batch(rows[:1], drafter.t2d, 3)
    for k, (output, step) in enumerate(
        zip(unroll(drafter, Rotary(drafter.config), batch), batch.steps, strict=True)
    ):
        truth = rows[0].last_TH[step.positions_S + 1]
        likeness = torch.cosine_similarity(drafter.norm(output), truth, dim=-1)
        assert likeness.mean() > 0.85, f"draft step {k}: {likeness.mean():.3f}"


def test_a_low_rank_map_is_the_best_of_its_rank_for_the_inputs_seen() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 8, generator=generator, dtype=torch.float64) * torch.arange(1, 9)
    whole = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    down, up = low_rank(whole, inputs.T @ inputs, 3)
    kept = torch.linalg.svdvals(inputs @ whole)
    error = torch.linalg.norm(inputs @ (whole - down @ up))
    torch.testing.assert_close(error, kept[3:].norm())


def test_the_sums_hold_only_slots_that_draft() -> None:
    drafter = tiny_drafter()
    _, head = tiny_teacher(drafter)
    row = tiny_row([0, 0, 1, 1, 1, 0, 1, 1], head)
    sums = collect([row], torch.randn(VOCAB, HIDDEN), torch.ones(HIDDEN))
    assert sums.slots == 3, "slots 1 and 2 of the first turn, slot 5 of the second"
