"""The expected accept length against speculative decoding played out, and against the walk."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.core.rows import EXACT, GREEDY
from eyas.drafter.accuracy import Accuracy
from eyas.drafter.batch import make_batch
from eyas.drafter.coverage import FullHead
from eyas.drafter.expectation import Expectation, expected_rounds
from eyas.drafter.rope import Rotary
from eyas.drafter.unroll import unroll
from eyas.drafter.walk import walk_rounds, walk_store
from tiny import tiny_drafter, tiny_row

DRAFTS, LENGTH, IDS = 3, 9, 4


class Toy:
    """A target and a drafter whose distributions depend on the last token (and, for the drafter, on the step)."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.target = [self._drawn(chance) for _ in range(IDS)]
        self.draft = [
            [[(a + b) / 2 for a, b in zip(p, self._drawn(chance), strict=True)] for p in self.target]
            for _ in range(DRAFTS)
        ]

    def _drawn(self, chance: random.Random) -> list[float]:
        weights = [chance.random() ** 2 + 0.02 for _ in range(IDS)]
        return [w / sum(weights) for w in weights]

    def answer(self, chance: random.Random) -> list[int]:
        """One prompt token, then LENGTH tokens of the target."""
        ids = [0]
        while len(ids) <= LENGTH:
            ids.append(chance.choices(range(IDS), self.target[ids[-1]])[0])
        return ids

    def accepts(self, ids: list[int], greedy: bool) -> list[list[float]]:
        """accepts[k][t] of the draft for x_{t+2+k}, which follows x_{t+1+k}."""
        table = []
        for k in range(DRAFTS):
            row = [0.0] * len(ids)
            for t in range(len(ids) - 2 - k):
                before, came = ids[t + 1 + k], ids[t + 2 + k]
                q, p = self.draft[k][before], self.target[before]
                row[t] = float(q.index(max(q)) == came) if greedy else min(1.0, q[came] / p[came])
            table.append(row)
        return table

    def served(self, chance: random.Random, greedy: bool) -> int:
        """Rounds that a server needs for one answer of LENGTH tokens, the first from the prefill."""
        last = chance.choices(range(IDS), self.target[0])[0]
        done, rounds = 1, 0
        while done < LENGTH:
            rounds += 1
            for k in range(DRAFTS + 1):
                p = self.target[last]
                if k == DRAFTS:
                    last = chance.choices(range(IDS), p)[0]
                    done += 1
                    break
                q = self.draft[k][last]
                draft = q.index(max(q)) if greedy else chance.choices(range(IDS), q)[0]
                density = 1.0 if greedy else q[draft]
                if chance.random() < min(1.0, p[draft] / density):
                    last, done = draft, done + 1
                    continue
                q = [float(i == draft) for i in range(IDS)] if greedy else q
                rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
                last = chance.choices(range(IDS), rest)[0]
                done += 1
                break
        return rounds


@pytest.mark.parametrize("greedy", [False, True], ids=["sampled drafts", "greedy drafts"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_expectation_is_what_playing_it_out_gives(seed: int, greedy: bool) -> None:
    """LENGTH - 1 tokens over the mean number of rounds; 8,000 answers each, so the bound is some 4 sigma."""
    toy, chance = Toy(seed), random.Random(100 + seed)
    number = 8_000
    played = number * (LENGTH - 1) / sum(toy.served(chance, greedy) for _ in range(number))
    total = Expectation()
    for _ in range(number):
        ids = toy.answer(chance)
        total += expected_rounds([0] + [1] * LENGTH, toy.accepts(ids, greedy))
    assert total.accept_length == pytest.approx(played, rel=0.015), (
        "the accept length promised for sampled answers is not what a server would show"
    )
    assert played > 1.2, "the toy accepts hardly anything, so this shows nothing"


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]], int | None]:
    length = draw(st.integers(1, 20))
    ids = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
    mask = draw(st.lists(st.sampled_from([0, 1, 1, 1]), min_size=length, max_size=length))
    drafts = draw(
        st.lists(st.lists(st.integers(0, 2), min_size=length, max_size=length), min_size=1, max_size=4)
    )
    return ids, mask, drafts, draw(st.none() | st.integers(1, 9))


@given(tables())
def test_with_certain_acceptance_the_expectation_is_the_walk(
    case: tuple[list[int], list[int], list[list[int]], int | None],
) -> None:
    ids, mask, drafts, limit = case
    accepts = [
        [float(t + 2 + k < len(ids) and draft == ids[t + 2 + k]) for t, draft in enumerate(row)]
        for k, row in enumerate(drafts)
    ]
    rounds = walk_rounds(ids, mask, drafts, limit)
    found = expected_rounds(mask, accepts, limit)
    assert found.rounds == pytest.approx(len(rounds))
    assert found.tokens == sum(rounds)


class Head(FullHead):
    def __init__(self, rows_VG: torch.Tensor) -> None:
        self.rows_VG, self.bias_V, self.scale, self.soft_cap = rows_VG, None, 1.0, None


def rows_of_each_kind(head: torch.Tensor) -> list:
    import dataclasses

    rows = [tiny_row([0, 0] + [1] * 14, head, seed, f"r{seed}") for seed in range(6)]
    flags = [[EXACT, GREEDY], [EXACT, GREEDY], [EXACT], [EXACT], [], [GREEDY]]
    return [
        dataclasses.replace(
            row, flags=flag, dataset="greedy" if GREEDY in flag and EXACT in flag else "other"
        )
        for row, flag in zip(rows, flags, strict=True)
    ]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_rows_get_the_expectation_and_no_other_does(temperature: float) -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    head = torch.randn(23, 16, generator=torch.Generator().manual_seed(5)) * 0.4
    rows = rows_of_each_kind(head)
    walk = walk_store(drafter, rows, 3, head=Head(head), temperature=temperature)
    assert [row.kind for row in walk.rows] == ["greedy"] * 2 + ["sampled"] * 2 + ["teacher-forced"] * 2
    assert [row.sampled is not None for row in walk.rows] == [False, False, True, True, False, False]
    total = Expectation()
    for row in rows[2:4]:
        batch = make_batch([row], drafter.t2d, 3)
        accepts = [[0.0] * len(row) for _ in range(3)]
        with torch.no_grad():
            outputs = unroll(drafter, Rotary(drafter.config), batch)
        for k, (step, output) in enumerate(zip(batch.steps, outputs, strict=True)):
            q = (drafter.logits(output).detach() / temperature).softmax(-1)
            for i, t in enumerate((step.positions_S - k).tolist()):
                came = int(row.input_ids_T[t + 2 + k])
                p = (row.last_TH[t + 1 + k] @ head.T / temperature).softmax(-1)[came]
                places = (drafter.target_ids_R == came).nonzero().flatten().tolist()
                accepts[k][t] = min(1.0, float(q[i, places[0]] / p)) if places else 0.0
        total += expected_rounds(row.loss_mask_T.int().tolist(), accepts)
    plain = walk.plain()["by_kind"]["sampled"]
    assert plain["accept_length_sampled_drafts"] == pytest.approx(total.accept_length, rel=1e-4)
    assert plain["temperature"] == temperature


def test_text_that_the_target_never_said_makes_no_claim_for_serving() -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    head = torch.randn(23, 16)
    plain = walk_store(drafter, rows_of_each_kind(head), 3).plain()
    assert plain["serving_claim"] is False
    assert plain["by_kind"]["teacher-forced"]["rows"] == 2
    assert set(plain["by_kind"]["teacher-forced"]) == {"rows", "accept_length"}
    only_greedy = walk_store(drafter, rows_of_each_kind(head)[:2], 3).plain()
    assert only_greedy["serving_claim"] is True


def test_coverage_is_the_mass_and_the_choices_inside_the_vocabulary() -> None:
    drafter = tiny_drafter(dtype=torch.float32)
    head = torch.randn(23, 16, generator=torch.Generator().manual_seed(5))
    rows = rows_of_each_kind(head)
    walk = walk_store(drafter, rows, 3, head=Head(head))
    masses, choices, labels = [], [], []
    for row in rows[:2]:
        for i in range(1, len(row) - 1):
            p = (row.last_TH[i] @ head.T).softmax(-1)
            masses.append(float(p[drafter.t2d].sum()))
            choices.append(bool(drafter.t2d[p.argmax()]))
            labels.append(bool(drafter.t2d[row.input_ids_T[i + 1]]))
    found = walk.plain()["coverage_by_dataset"]["greedy"]
    assert found["positions"] == len(masses)
    assert found["mass"] == pytest.approx(sum(masses) / len(masses), abs=1e-5)
    assert found["argmax"] == pytest.approx(sum(choices) / len(choices), abs=1e-5)
    assert found["labels"] == pytest.approx(sum(labels) / len(labels), abs=1e-5)
    assert walk.plain()["coverage"]["positions"] == 6 * 14
    assert set(walk.plain()["ceiling_by_dataset"]) == {"greedy", "other"}


@pytest.mark.parametrize("ids", [1, 5, 8192])
def test_the_blocks_that_the_head_is_read_in_change_nothing(
    ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyas.drafter.coverage.IDS", ids)
    monkeypatch.setattr("eyas.drafter.coverage.POSITIONS", 3)
    rows_VG, last = torch.randn(23, 16), torch.randn(10, 16)
    head = Head(rows_VG)
    head.soft_cap, head.scale = 3.0, 1.3
    inside = torch.arange(23) % 3 == 0
    came = torch.randint(0, 23, (10,))
    mass, log_chance = head.read(last, came, inside, 0.7)
    logits = 1.3 * 3.0 * torch.tanh(last @ rows_VG.T / 3.0)
    torch.testing.assert_close(mass, logits.softmax(-1)[:, inside].sum(-1))
    expected = (logits / 0.7).log_softmax(-1).gather(-1, came.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(log_chance, expected)


def test_the_expected_length_of_training_counts_joint_prefixes() -> None:
    accuracy = Accuracy(2)
    hits = [torch.tensor([True, True, False, True]), torch.tensor([True, False, True])]
    accuracy.add(hits, [torch.arange(4), torch.tensor([0, 1, 2])])
    assert accuracy.expected_length == 1 + (3 + 1) / 4
    assert accuracy.unconditional == [0.75, pytest.approx(2 / 3, abs=1e-6)]
    assert accuracy.conditional == [0.75, 0.5]
    assert accuracy.reached == [4, 2]
    again = Accuracy.from_flat([float(v) for v in accuracy.flat()])
    assert again == accuracy
