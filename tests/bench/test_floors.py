"""The floors draft what they say, and never from what is not yet known."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.bench.floors import bigram_guess, bigrams, floor, lookup_guess
from eyas.core.rows import TokenRow
from eyas.drafter.walk import NO_DRAFT

IDS = st.lists(st.integers(0, 4), min_size=2, max_size=24)


def row(ids: list[int], mask: list[int]) -> TokenRow:
    return TokenRow("r", "toy", ids, mask, [])


def test_the_most_frequent_successor_wins_and_ties_go_to_the_lower_id() -> None:
    table = bigrams([row([1, 5, 1, 4, 1, 5, 2, 7, 2, 6], [1] * 10)])
    assert table == {1: 5, 5: 1, 4: 1, 2: 6, 7: 2}


def test_only_pairs_within_an_answer_are_counted() -> None:
    assert bigrams([row([1, 2, 3, 4, 5], [0, 1, 1, 0, 1])]) == {2: 3}


def test_bigrams_follow_their_own_drafts() -> None:
    guess = bigram_guess({1: 2, 2: 3, 3: 9})
    assert guess([0, 1, 7, 2], 3) == [
        [2, NO_DRAFT, 3, NO_DRAFT],
        [3, NO_DRAFT, 9, NO_DRAFT],
        [9, NO_DRAFT, NO_DRAFT, NO_DRAFT],
    ]


def test_look_up_takes_the_longest_suffix_before_the_most_recent_place() -> None:
    ids = [1, 2, 3, 7, 8, 3, 9, 9, 1, 2, 3]
    made = lookup_guess(ids, 2)
    assert [of[9] for of in made] == [7, 8], "after 1 2 3 came 7 8; after the later lone 3 came 9"
    assert [of[4] for of in made] == [7, 8], "after 3 came 7 8"


@given(ids=IDS, drafts=st.integers(1, 4))
@settings(deadline=None)
def test_look_up_proposes_what_followed_an_equal_suffix_in_the_known_context(
    ids: list[int], drafts: int
) -> None:
    made = lookup_guess(ids, drafts)
    for slot in range(len(ids) - 1):
        context = ids[: slot + 2]
        proposed = [of[slot] for of in made if of[slot] != NO_DRAFT]
        best = []
        for n in (1, 2, 3):
            ends = [e for e in range(n, len(context)) if context[e - n : e] == context[len(context) - n :]]
            best = context[ends[-1] : ends[-1] + drafts] if ends and len(context) > n else best
        assert proposed == best


@given(ids=IDS, later=IDS, drafts=st.integers(1, 4))
@settings(deadline=None)
def test_a_floor_never_reads_the_tokens_that_it_should_guess(
    ids: list[int], later: list[int], drafts: int
) -> None:
    for guess in (lookup_guess, bigram_guess({0: 1, 1: 2, 2: 0})):
        known = [of[: len(ids) - 1] for of in guess(ids, drafts)]
        assert [of[: len(ids) - 1] for of in guess(ids + later, drafts)] == known


def test_a_floor_is_pooled_over_rows() -> None:
    table = bigram_guess({1: 1})
    rows = [row([9, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]), row([9, 2, 3, 4], [0, 1, 1, 1])]
    assert floor(table, rows, 3) == (4 + 2) / (1 + 2)
