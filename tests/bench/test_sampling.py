"""Speculative sampling gives the target's own distribution: chi-square tests on a tiny vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import toy
from eyas.bench.decoder import Sampling, decode
from eyas.bench.plain import decode_plainly
from eyas.bench.random_drafter import random_drafter
from eyas.bench.sampling import accept_candidate, accept_chain, distribution
from eyas.bench.tree import TreeShape
from eyas.core.contract import read_facts
from eyas.drafter.config import DrafterConfig
from eyas.drafter.target_weights import TargetWeights
from eyas.engines.hf import HfTarget

V = 6


def chi_square(counts: Counter, expected: dict, number: int) -> tuple[float, int]:
    """(the statistic, degrees of freedom), cells with less than 5 expected put together."""
    rest_seen = rest_expected = 0.0
    total, cells = 0.0, 0
    for cell, probability in expected.items():
        if number * probability < 5:
            rest_seen += counts[cell]
            rest_expected += number * probability
            continue
        total += (counts[cell] - number * probability) ** 2 / (number * probability)
        cells += 1
    if rest_expected >= 1:
        total += (rest_seen - rest_expected) ** 2 / rest_expected
        cells += 1
    return total, cells - 1


def critical(freedom: int) -> float:
    """The value that chance passes once in 10,000 (Wilson and Hilferty's approximation)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


def distributions(seed: int, rows: int) -> Tensor:
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 1.5
    return distribution(logits, 0.8)


def chain_rounds(number: int, drafted: Tensor, wanted: Tensor, rule: Callable = accept_chain) -> Counter:
    """First token of each of `number` rounds with two drafts."""
    generator = torch.Generator().manual_seed(1)
    seen: Counter = Counter()
    for _ in range(number):
        drafts = [int(torch.multinomial(row, 1, generator=generator)) for row in drafted]
        seen[rule(drafts, drafted, wanted, generator)[0]] += 1
    return seen


def test_the_first_token_of_a_chains_round_is_the_targets() -> None:
    drafted, wanted = distributions(0, 2), distributions(9, 3)
    expected = {token: float(wanted[0, token]) for token in range(V)}
    statistic, freedom = chi_square(chain_rounds(4000, drafted, wanted), expected, 4000)
    assert statistic < critical(freedom), "sampling with drafts is not the target's distribution"


def test_a_rule_that_accepts_every_draft_is_noticed() -> None:
    drafted, wanted = distributions(0, 2), distributions(9, 3)
    expected = {token: float(wanted[0, token]) for token in range(V)}
    seen = chain_rounds(4000, drafted, wanted, lambda drafts, *_: drafts)
    statistic, freedom = chi_square(seen, expected, 4000)
    assert statistic > critical(freedom)


def test_the_token_of_a_tree_node_is_the_targets() -> None:
    wanted, generator = distributions(3, 1)[0], torch.Generator().manual_seed(2)
    seen = Counter(accept_candidate([4, 0, 2], wanted, generator)[1] for _ in range(4000))
    statistic, freedom = chi_square(seen, {t: float(wanted[t]) for t in range(V)}, 4000)
    assert statistic < critical(freedom)


@given(seed=st.integers(0, 500), temperature=st.floats(0.2, 2.0))
@settings(deadline=None, max_examples=40)
def test_a_drafter_that_is_the_target_is_never_refused(seed: int, temperature: float) -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(seed))
    wanted, generator = distribution(logits, temperature), torch.Generator().manual_seed(seed)
    drafts = [int(torch.multinomial(row, 1, generator=generator)) for row in wanted[:2]]
    assert accept_chain(drafts, wanted[:2], wanted, generator)[:2] == drafts


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[HfTarget, object, Path]:
    """A target of eight ids, and a drafter that knows five of them."""
    folder = toy.write_target(
        tmp_path_factory.mktemp("tiny") / "t",
        vocab_size=8,
        num_hidden_layers=3,
        eos_token_id=7,
        bos_token_id=1,
    )
    config = DrafterConfig.like_target(read_facts(folder), 2, 5)
    drafter = random_drafter(config, torch.tensor([0, 2, 3, 4, 6]), TargetWeights(folder).embedding(), 1)
    with torch.no_grad():
        drafter.lm_head.weight.mul_(60)  # a drafter of strong and wrong opinions
    return HfTarget(folder), drafter, folder


@pytest.mark.parametrize("how", ["plain", "chain", "tree"])
def test_decoding_samples_the_targets_joint_distribution(tiny: tuple, how: str) -> None:
    """The first three tokens, against the product of the target's own conditional probabilities."""
    target, drafter, _ = tiny
    prompt, number, temperature = [1, 3, 2], 700, 1.3
    tree = TreeShape(2, 2, 4) if how == "tree" else None
    seen: Counter = Counter()
    for seed in range(number):
        sampling = Sampling(temperature, seed)
        if how == "plain":
            made = decode_plainly(target, prompt, 3, end_ids=[], sampling=sampling)
        else:
            made = decode(target, drafter, (1, 2), prompt, 2, 3, [], sampling, tree)
        seen[tuple(made.tokens[1:])] += 1
    statistic, freedom = chi_square(seen, joint(target, prompt, temperature), number)
    assert freedom > 10
    assert statistic < critical(freedom), "sampling with drafts is not the target's distribution"


def joint(target: HfTarget, prompt: list[int], temperature: float) -> dict[tuple[int, int], float]:
    """Probability of each pair of second and third tokens."""
    size = target.facts.vocab_size
    with torch.inference_mode():
        after = [[*prompt, a] for a in range(size)]
        first = wanted(target, [prompt], temperature)[0]
        second = wanted(target, after, temperature)
        third = wanted(target, [[*ids, b] for ids in after for b in range(size)], temperature)
    pairs: dict[tuple[int, int], float] = {}
    for a in range(size):
        for b in range(size):
            for c in range(size):
                p = float(first[a] * second[a, b] * third[a * size + b, c])
                pairs[b, c] = pairs.get((b, c), 0.0) + p
    return pairs


def wanted(target: HfTarget, rows: list[list[int]], temperature: float) -> Tensor:
    return distribution(target.model(torch.tensor(rows)).logits[:, -1], temperature)
