"""The reference decoder against `model.generate` and against the walk; and that faults would be seen."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toy
from eyas.bench import decoder, draft
from eyas.bench import plain as plain_decoding
from eyas.bench.clock import Moment
from eyas.bench.decoded import Decoded, until_end
from eyas.bench.decoder import decode, leading_matches
from eyas.bench.plain import decode_plainly
from eyas.core.rows import TokenRow
from eyas.drafter.network import Drafter
from eyas.drafter.walk import walk_store
from eyas.engines.hf import HfTarget
from eyas.states.store import StateRow

DRAFTS = (1, 2, 3, 5)


def decoded(target: HfTarget, drafter: Drafter, row: TokenRow, drafts: int) -> Decoded:
    labels = row.num_labels
    return decode(target, drafter, toy.BOUNDARIES, row.input_ids[:-labels], drafts, labels)


def answers(target: HfTarget, drafter: Drafter, rows: list[TokenRow], drafts: int = 3) -> list[list[int]]:
    return [decoded(target, drafter, row, drafts).tokens for row in rows]


def all_rounds(target: HfTarget, drafter: Drafter, rows: list[TokenRow], drafts: int = 3) -> list[list[int]]:
    return [decoded(target, drafter, row, drafts).rounds for row in rows]


def walked(drafter: Drafter, rows: list[StateRow], drafts: int = 3) -> list[list[int]]:
    return [row.rounds for row in walk_store(drafter, rows, drafts).rows]


def plain(rows: list[TokenRow]) -> list[list[int]]:
    return [row.input_ids[-row.num_labels :] for row in rows]


@pytest.mark.parametrize("drafts", DRAFTS)
def test_a_good_drafter_leaves_the_output_as_generate_makes_it(
    target: HfTarget, good: Drafter, rows: list[TokenRow], drafts: int
) -> None:
    assert answers(target, good, rows, drafts) == plain(rows), "drafting changed what the target says"


@pytest.mark.parametrize("seed", range(3))
def test_a_random_drafter_leaves_the_output_as_it_is_and_gains_nothing(
    target: HfTarget, rows: list[TokenRow], seed: int, target_folder: object
) -> None:
    drafter = toy.chance_drafter(target_folder, seed)
    assert answers(target, drafter, rows) == plain(rows)
    rounds = [n for of in all_rounds(target, drafter, rows) for n in of]
    assert sum(rounds) / len(rounds) < 1.1, "a drafter without knowledge seems to know something"


@pytest.mark.parametrize("drafts", DRAFTS)
def test_the_tokens_of_each_round_are_those_of_the_walk(
    target: HfTarget, good: Drafter, rows: list[TokenRow], state_rows: list[StateRow], drafts: int
) -> None:
    rounds = all_rounds(target, good, rows, drafts)
    assert max(n for of in rounds for n in of) > 2 or drafts == 1, "the drafter is too bad to prove anything"
    assert rounds == walked(good, state_rows, drafts)


@pytest.mark.parametrize(
    "changes",
    [{"norm_output": True}, {"norm_before_residual": True}, {"fc_norm": True}, {"norm_before_fc": True}],
)
def test_the_walk_equals_decoding_under_every_norm_flag(
    target: HfTarget, target_folder: object, rows: list[TokenRow], state_rows: list[StateRow], changes: dict
) -> None:
    drafter = toy.chance_drafter(target_folder, 0, **changes)
    with torch.no_grad():  # large weights, so that every part of the layer moves the drafts
        for parameter in drafter.midlayer.parameters():
            parameter.mul_(10)
    proposals = [first_drafts(target, drafter, row) for row in rows]
    assert proposals == [unrolled_drafts(drafter, row) for row in state_rows]


def first_drafts(target: HfTarget, drafter: Drafter, row: TokenRow) -> list[int]:
    """What the decoder drafts in its first round."""
    labels = row.num_labels
    with torch.inference_mode(), target.captured(toy.BOUNDARIES) as captured:
        prompt = row.input_ids[:-labels]
        target.decoder(input_ids=torch.tensor([prompt]))
        aux = torch.cat([captured[b][0] for b in toy.BOUNDARIES], dim=-1)
        stream = draft.DraftStream(drafter, 100)
        stream.learn(aux[:2], prompt[1:3])
        stream.learn(aux[2:], row.input_ids[3 : len(prompt) + 1])
        return stream.propose(3)


def unrolled_drafts(drafter: Drafter, row: StateRow) -> list[int]:
    """What the unrolled steps draft at the first slot of the answer, fed their own drafts."""
    from eyas.drafter.batch import make_batch
    from eyas.drafter.rope import Rotary
    from eyas.drafter.walk import drafted_ids

    start = int(row.loss_mask_T.int().argmax())
    ids, made = row.input_ids_T.clone(), []
    for k in range(3):
        ids[start + 1 : start + 1 + len(made)] = torch.tensor(made)
        fed = toy.dataclasses.replace(row, input_ids_T=ids)
        with torch.inference_mode():
            batch = make_batch([fed], drafter.t2d, 3)
            made.append(int(drafted_ids(drafter, Rotary(drafter.config), batch)[k][0]))
    return made


def test_a_verifier_that_accepts_one_wrong_draft_is_seen_in_the_output(
    target: HfTarget, good: Drafter, rows: list[TokenRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = iter([True])

    def lenient(drafts: list[int], greedy: list[int]) -> int:
        accepted = leading_matches(drafts, greedy)
        if accepted < len(drafts) and next(wrong, False):
            greedy[accepted] = drafts[accepted]
            return accepted + 1
        return accepted

    monkeypatch.setattr(decoder, "leading_matches", lenient)
    assert answers(target, good, rows) != plain(rows), "one wrongly accepted draft went unnoticed"


def test_a_d2t_shifted_by_one_is_seen_in_the_rounds(
    target: HfTarget, good: Drafter, rows: list[TokenRow], state_rows: list[StateRow]
) -> None:
    shifted = copy.deepcopy(good)
    shifted.d2t += 1
    assert answers(target, shifted, rows) == plain(rows), "even a wrong map must not change the output"
    assert all_rounds(target, shifted, rows) != walked(good, state_rows), "a shifted map went unnoticed"


@pytest.mark.parametrize("first_step", [0, 1], ids=["every step", "steps after the first"])
def test_a_rope_position_shifted_by_one_is_seen_in_the_rounds(
    target: HfTarget,
    good: Drafter,
    rows: list[TokenRow],
    state_rows: list[StateRow],
    monkeypatch: pytest.MonkeyPatch,
    first_step: int,
) -> None:
    propose, rotated = draft.DraftStream.propose, draft.DraftStream._rotated

    def shifting(self: draft.DraftStream, count: int) -> list[int]:
        self.drafting = True
        try:
            return propose(self, count)
        finally:
            self.drafting = False

    def off_by_one(self: draft.DraftStream, heads: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        shift = int(getattr(self, "drafting", False) and start >= self.length - 1 + first_step)
        return rotated(self, heads, start + shift, stop + shift)

    monkeypatch.setattr(draft.DraftStream, "propose", shifting)
    monkeypatch.setattr(draft.DraftStream, "_rotated", off_by_one)
    assert answers(target, good, rows) == plain(rows), "even wrong positions must not change the output"
    assert all_rounds(target, good, rows) != walked(good, state_rows), "a shifted position went unnoticed"


def test_draft_keys_kept_for_accepted_tokens_are_seen_in_the_rounds(
    target: HfTarget,
    good: Drafter,
    rows: list[TokenRow],
    state_rows: list[StateRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = draft.DraftStream._store

    def keep_drafts(self: draft.DraftStream, input_n2H: torch.Tensor, start: int) -> None:
        """Write the last of several new slots alone: the others keep what drafting left there."""
        skip = len(input_n2H) - 1 if self.length > 12 else 0
        store(self, input_n2H[skip:], start + skip)

    monkeypatch.setattr(draft.DraftStream, "_store", keep_drafts)
    assert all_rounds(target, good, rows) != walked(good, state_rows), "stale draft keys went unnoticed"


def test_decoding_stops_at_an_end_token_inside_a_round(
    target: HfTarget, good: Drafter, rows: list[TokenRow]
) -> None:
    row = rows[0]
    prompt, answer = row.input_ids[: -row.num_labels], row.input_ids[-row.num_labels :]
    for end in list(dict.fromkeys(answer))[:8]:
        made = decode(target, good, toy.BOUNDARIES, prompt, 3, len(answer), end_ids=[end])
        assert made.tokens == answer[: answer.index(end) + 1]
        assert sum(made.rounds) == len(made.tokens) - 1, "tokens past the end were counted"
        assert all(0 <= a <= n for a, n in zip(made.accepted, made.rounds, strict=True))
        assert decode_plainly(target, prompt, len(answer), end_ids=[end]).tokens == made.tokens


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_last_round_is_cut_at_the_limit(
    target: HfTarget, good: Drafter, rows: list[TokenRow], limit: int
) -> None:
    row = rows[0]
    prompt, answer = row.input_ids[: -row.num_labels], row.input_ids[-row.num_labels :]
    made = decode(target, good, toy.BOUNDARIES, prompt, 5, limit)
    assert made.tokens == answer[:limit]
    assert sum(made.rounds) == limit - 1


def test_no_round_reads_the_prefix_again(
    target: HfTarget, good: Drafter, rows: list[TokenRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    handle = target.decoder.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    learnt: list[int] = []
    learn = draft.DraftStream.learn
    monkeypatch.setattr(
        draft.DraftStream, "learn", lambda self, aux, ids: (learnt.append(len(ids)), learn(self, aux, ids))[1]
    )
    made = decoded(target, good, rows[0], 3)
    handle.remove()
    prompt = len(rows[0].input_ids) - rows[0].num_labels
    assert read == [prompt] + [4] * len(made.rounds), "a round must read one token and its drafts"
    assert learnt == [prompt - 1, 1, *made.rounds[:-1]], "a round must learn the accepted tokens alone"


def test_both_clocks_leave_the_first_token_out(
    target: HfTarget, good: Drafter, rows: list[TokenRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards: list[int] = []
    handle = target.decoder.register_forward_hook(lambda *_: forwards.append(1))
    for module in (plain_decoding, decoder):
        monkeypatch.setattr(module, "now", lambda: Moment(len(forwards), len(forwards)))
    row = rows[0]
    once = decode_plainly(target, row.input_ids[: -row.num_labels], 20)
    assert (once.first.cpu, once.spent.cpu) == (1, 19), "the prefill is no part of decoding"
    made = decoded(target, good, row, 3)
    assert (made.first.cpu, made.spent.cpu) == (1, len(made.rounds))
    handle.remove()


def test_a_prompt_of_one_token_can_be_decoded(target: HfTarget, chance: Drafter) -> None:
    made = decode(target, chance, toy.BOUNDARIES, [7], 3, 8)
    assert made.tokens == decode_plainly(target, [7], 8).tokens


@given(
    fresh=st.lists(st.integers(0, 5), max_size=8),
    room=st.integers(0, 8),
    ends=st.sets(st.integers(0, 5), max_size=2),
)
@settings(deadline=None)
def test_what_counts_ends_at_the_first_end_token_or_the_limit(
    fresh: list[int], room: int, ends: set[int]
) -> None:
    kept = until_end(fresh, room, ends)
    assert kept == fresh[: len(kept)]
    assert not ends & set(kept[:-1])
    assert len(kept) == min(room, len(fresh)) or kept[-1] in ends


@given(
    drafts=st.lists(st.integers(0, 2), max_size=6), greedy=st.lists(st.integers(0, 2), min_size=7, max_size=7)
)
def test_drafts_are_accepted_up_to_the_first_that_differs(drafts: list[int], greedy: list[int]) -> None:
    accepted = leading_matches(drafts, greedy)
    assert drafts[:accepted] == greedy[:accepted]
    assert accepted == len(drafts) or drafts[accepted] != greedy[accepted]
