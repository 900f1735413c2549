"""The walk against a loop that plays the rounds one token at a time."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.drafter.batch import make_batch
from eyas.drafter.rope import Rotary
from eyas.drafter.walk import drafted_ids, walk_rounds, walk_store
from tiny import tiny_drafter, tiny_row, tiny_teacher


def played(ids: list[int], mask: list[int], drafts: list[list[int]], limit: int | None) -> list[int]:
    """A server's view: a round emits every right draft and then the target's own token, until the turn is out."""
    rounds = []
    position = 0
    while position < len(ids):
        if not mask[position]:
            position += 1
            continue
        turn = [position]
        while turn[-1] + 1 < len(ids) and mask[turn[-1] + 1]:
            turn.append(turn[-1] + 1)
        position = turn[-1] + 1
        answer = turn if limit is None else turn[:limit]
        emitted = answer[:1]
        while emitted[-1] != answer[-1]:
            slot = emitted[-1] - 1
            new = []
            for k in range(len(drafts)):
                place = emitted[-1] + 1 + k
                if place > answer[-1] or slot < 0 or drafts[k][slot] != ids[place]:
                    break
                new.append(place)
            bonus = emitted[-1] + len(new) + 1
            if bonus <= answer[-1]:
                new.append(bonus)
            rounds.append(len(new))
            emitted += new
    return rounds


@st.composite
def walks(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]], int | None]:
    length = draw(st.integers(1, 25))
    token = st.integers(0, 2)
    ids = draw(st.lists(token, min_size=length, max_size=length))
    mask = draw(st.lists(st.sampled_from([0, 1, 1, 1]), min_size=length, max_size=length))
    drafts = draw(st.lists(st.lists(token, min_size=length, max_size=length), min_size=1, max_size=5))
    return ids, mask, drafts, draw(st.none() | st.integers(1, 12))


@given(walks())
def test_rounds_are_those_of_a_server(case: tuple[list[int], list[int], list[list[int]], int | None]) -> None:
    assert walk_rounds(*case) == played(*case)


@given(walks())
def test_tokens_of_all_rounds_are_the_answers_without_their_first_token(
    case: tuple[list[int], list[int], list[list[int]], int | None],
) -> None:
    _, mask, _, limit = case
    runs = [len(run) for run in "".join(map(str, mask)).split("0") if run]
    assert sum(walk_rounds(*case)) == sum(min(n, limit or n) - 1 for n in runs)


def test_a_drafter_that_is_always_right_emits_all_drafts_and_the_bonus() -> None:
    ids, mask = list(range(12)), [0, 0, 0] + [1] * 9
    drafts = [[t + 2 + k for t in range(12)] for k in range(3)]
    assert walk_rounds(ids, mask, drafts) == [4, 4], "9 tokens, the first from the prefill"


def test_a_drafter_that_is_never_right_emits_one_token_a_round() -> None:
    assert walk_rounds(list(range(6)), [0, 1, 1, 1, 1, 1], [[-1] * 6] * 3) == [1, 1, 1, 1]


def test_walking_a_store_uses_each_slots_own_drafts_whatever_is_walked_with_it() -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    _, head = tiny_teacher(drafter)
    rows = [tiny_row([0, 0, 1, 1, 1, 1, 0, 1, 1, 1], head, 7, "a"), tiny_row([0] + [1] * 14, head, 8, "b")]
    walk = walk_store(drafter, rows, 4)
    for row, found in zip(rows, walk.rows, strict=True):
        batch = make_batch([row], drafter.t2d, 4)
        drafts = [[-1] * len(row) for _ in range(4)]
        for k, ids in enumerate(drafted_ids(drafter, Rotary(drafter.config), batch)):
            for position, token in zip(batch.steps[k].positions_S.tolist(), ids.tolist(), strict=True):
                drafts[k][position - k] = token
        ids, mask = row.input_ids_T.tolist(), row.loss_mask_T.int().tolist()
        assert found.rounds == walk_rounds(ids, mask, drafts)
    rounds = [n for row in walk.rows for n in row.rounds]
    assert walk.accept_length == sum(rounds) / len(rounds)


def test_a_label_outside_the_draft_vocabulary_is_a_miss_and_bounds_the_ceiling() -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    _, head = tiny_teacher(drafter)
    row = tiny_row([0, 0] + [1] * 20, head, 9)
    walk = walk_store(drafter, [row], 3)
    inside = drafter.t2d[row.input_ids_T]
    perfect = [
        [int(row.input_ids_T[t + 2 + k]) if t + 2 + k < 22 and inside[t + 2 + k] else -1 for t in range(22)]
        for k in range(3)
    ]
    assert walk.ceilings[0].rounds == walk_rounds(
        row.input_ids_T.tolist(), row.loss_mask_T.int().tolist(), perfect
    )
    assert walk.outside["tiny"][0] == int((~inside[3:]).sum())
