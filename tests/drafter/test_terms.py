"""Which slots draft and which carry loss: design section 5, by brute force over the definition."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.drafter.batch import make_batch
from eyas.drafter.terms import slot_lives, term_counts
from tiny import tiny_drafter, tiny_row, tiny_teacher

CASES = Path(__file__).parents[1] / "cases" / "inputs"
masks = st.lists(st.integers(0, 1), max_size=24)


def by_definition(mask: list[int], k: int) -> list[int]:
    return [t for t in range(len(mask)) if t + 2 + k < len(mask) and all(mask[t + 1 : t + 3 + k])]


@given(masks, st.integers(1, 7))
def test_a_slot_works_while_every_token_up_to_its_label_was_generated(mask: list[int], steps: int) -> None:
    lives_T = slot_lives(torch.tensor(mask, dtype=torch.uint8), steps)
    for k in range(steps):
        assert torch.nonzero(lives_T > k).flatten().tolist() == by_definition(mask, k)


def test_c036_the_mask_follows_the_label() -> None:
    case = json.loads((CASES / "C036.row.json").read_text())
    expected = json.loads((CASES / "C036.expected.json").read_text())
    for k in range(3):
        lives_T = slot_lives(torch.tensor(case["loss_mask"]), 3)
        labels = set((torch.nonzero(lives_T > k).flatten() + 2 + k).tolist())
        if k == 0:
            assert set(expected["label_positions_required"]) <= labels, (
                "the 2nd token of an answer is untrained"
            )
        assert not labels & set(expected["label_positions_forbidden"]), "a slot outside the answer is trained"
        assert labels <= {6, 7, 8}


def test_c036_the_state_before_the_answer_gets_a_gradient() -> None:
    from eyas.drafter.loss import batch_loss
    from eyas.drafter.objectives import LossSpec
    from eyas.drafter.rope import Rotary
    from eyas.drafter.unroll import unroll

    case = json.loads((CASES / "C036.row.json").read_text())
    drafter = tiny_drafter(draft_vocab_size=23)
    teacher, head = tiny_teacher(drafter)
    row = tiny_row(case["loss_mask"], head)
    row.aux_TAH.requires_grad_()
    batch = make_batch([row], drafter.t2d, 1)
    outputs = unroll(drafter, Rotary(drafter.config), batch)
    loss = batch_loss(drafter, outputs, batch, teacher, LossSpec(), batch.term_counts)
    loss.loss.backward()
    touched = row.aux_TAH.grad.abs().sum(-1).nonzero().flatten().tolist()
    assert touched == [0, 1, 2, 3, 4, 5, 6], "slots 4..6 draft, and the prompt before them is their context"


@given(masks, st.integers(0, 1000), st.integers(1, 4))
def test_batches_hold_the_terms_that_were_counted_beforehand(mask: list[int], seed: int, steps: int) -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    _, head = tiny_teacher(drafter)
    rows = [tiny_row([0, *mask, 1], head, seed), tiny_row([1, 1, 1, *mask], head, seed + 1)]
    each = [term_counts(row.loss_mask_T, row.teacher_T, drafter.t2d, steps) for row in rows]
    assert make_batch(rows, drafter.t2d, steps).term_counts == [sum(n) for n in zip(*each, strict=True)]


def test_every_index_of_a_batch_is_that_of_the_design() -> None:
    drafter = tiny_drafter()
    _, head = tiny_teacher(drafter)
    rows = [tiny_row([0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0], head, 3), tiny_row([0, 1, 1, 1, 1], head, 4)]
    batch = make_batch(rows, drafter.t2d, 3)
    for k, step in enumerate(batch.steps):
        seen = []
        for i in range(len(step)):
            row, t = rows[int(step.rows_S[i])], int(step.positions_S[i]) - k
            seen.append((int(step.rows_S[i]), t))
            assert step.ids_S[i] == row.input_ids_T[t + 1 + k]
            assert step.labels_S[i] == row.input_ids_T[t + 2 + k]
            teacher = int(row.teacher_T[t + 1 + k])
            if step.teachers_S[i] >= 0:
                place = step.teachers_S[i]
                torch.testing.assert_close(batch.last_PG[place], row.last_TH[t + 1 + k], rtol=0, atol=0)
                assert batch.argmax_P[place] == teacher
                assert drafter.t2d[teacher]
            else:
                assert not drafter.t2d[teacher]
        masks = [row.loss_mask_T.int().tolist() for row in rows]
        assert seen == [(r, t) for r in range(2) for t in by_definition(masks[r], k)]


def test_the_last_token_of_a_row_is_never_read() -> None:
    drafter = tiny_drafter()
    _, head = tiny_teacher(drafter)
    whole = tiny_row([0, 0, 1, 1, 1, 1, 1], head)
    whole.aux_TAH[-1] = torch.nan
    whole.last_TH[-1] = torch.nan
    batch = make_batch([whole], drafter.t2d, 3)
    assert batch.aux_NAG.isfinite().all()
    assert batch.last_PG.isfinite().all()
