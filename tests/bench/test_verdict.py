"""Speed-up, round cost and the sentence."""

from __future__ import annotations

import pytest

from eyas.bench.verdict import Comparison, Setting, sentence, setting


def line(draft_tokens: int, tokens: int, rounds: list[int], cpu: float, drafting: float = 0.0) -> dict:
    accepted = [min(n, draft_tokens) - (n < draft_tokens) if n > draft_tokens else n - 1 for n in rounds]
    return {
        "tokens": [0] * tokens,
        "rounds": rounds,
        "accepted": accepted,
        "cpu_s": cpu,
        "wall_s": 2 * cpu,
        "draft_cpu_s": drafting,
    }


PLAIN = setting(0, [line(0, 11, [], 10.0), line(0, 21, [], 20.0)])


def compared(cpu: float, rounds: list[int], draft_tokens: int = 3) -> Comparison:
    return Comparison(setting(draft_tokens, [line(draft_tokens, 31, rounds, cpu, 1.5)]), PLAIN)


def test_the_accept_length_is_pooled_not_a_mean_of_means() -> None:
    both = setting(3, [line(3, 9, [4, 4], 1.0), line(3, 3, [1, 1], 1.0)])
    assert both.accept_length == 10 / 4


def test_round_cost_is_accept_length_over_speedup() -> None:
    it = compared(20.0, [2] * 15)
    assert it.speedup == pytest.approx(1.5)
    assert it.round_cost == pytest.approx(2 / 1.5), "a round took 20 s / 15, a plain step 1 s"
    assert it.draft_cost == pytest.approx(0.1)
    assert it.wall_speedup == pytest.approx(1.5)


def test_breaking_even_needs_an_accept_length_of_the_round_cost() -> None:
    it = compared(30.0, [2] * 15)
    assert it.speedup == pytest.approx(1.0)
    assert it.drafted.accept_length == pytest.approx(it.round_cost)


def test_acceptance_by_position_counts_kept_drafts_over_rounds() -> None:
    it = Setting(2, 6, 4, 1.0, 1.0, 0.1, (2, 1))
    assert it.acceptance_by_position == [0.5, 0.25]


def test_a_gain_is_said_with_its_reason() -> None:
    text = sentence(2.1, 3, [compared(25.0, [2] * 15, 1), compared(40.0, [3] * 10, 3)])
    assert "1 draft pays best, 1.20 times plain decoding" in text
    assert "3 drafts add 1.00 tokens a round and 2.33 plain steps" in text


def test_a_loss_is_said_as_it_is() -> None:
    text = sentence(1.2, 3, [compared(60.0, [1] * 30, 1), compared(90.0, [1] * 30, 3)])
    assert "no number of drafts pays" in text
    assert "0.50 of plain speed" in text
