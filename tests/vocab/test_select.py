from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.core.errors import EyasError
from eyas.core.rows import TokenRow
from eyas.vocab.select import count_tokens, coverage, select


def counts(table: dict[int, int], size: int) -> np.ndarray:
    made = np.zeros(size, np.int64)
    for token, count in table.items():
        made[token] = count
    return made


def test_counts_with_a_tie_a_prompt_token_a_forced_id_and_padding_rows() -> None:
    """Case C035: four rising ids, ties to the lower id, nothing from the head's padding rows."""
    labels = counts({9: 50, 2: 40, 12: 40, 4: 40, 7: 1, 11: 1}, 16)
    everything = labels + counts({3: 500}, 16)
    chosen = select(labels, everything, 4, 13, [1])
    assert chosen.tolist() == [1, 2, 4, 9]
    assert (chosen - np.arange(4)).tolist() == [1, 1, 2, 6]


@given(
    st.dictionaries(st.integers(0, 19), st.integers(1, 3)),
    st.dictionaries(st.integers(0, 19), st.integers(1, 3)),
    st.integers(2, 17),
)
def test_no_chosen_label_is_rarer_than_one_left_out(
    labels: dict[int, int], prompts: dict[int, int], size: int
) -> None:
    label_counts = counts(labels, 20)
    chosen = select(label_counts, label_counts + counts(prompts, 20), size, 17, [5])
    assert len(chosen) == size
    assert (np.diff(chosen) > 0).all(), "draft ids must rise with target ids"
    assert chosen.max() < 17, "a padding row of the head was chosen"
    assert 5 in chosen, "a drafter without the stop token never drafts an end"
    free = [i for i in chosen if i != 5]
    left = [i for i in range(17) if i not in chosen]
    key = lambda i: (-label_counts[i], -(label_counts[i] + prompts.get(i, 0)), i)  # noqa: E731
    assert all(key(a) < key(b) for a in free for b in left)


def test_room_that_is_left_goes_to_prompt_tokens_and_then_to_the_lowest_ids() -> None:
    chosen = select(counts({8: 1}, 12), counts({8: 1, 10: 2}, 12), 5, 12, [0])
    assert chosen.tolist() == [0, 1, 2, 8, 10]


def test_counts_take_labels_only() -> None:
    labels, everything = count_tokens([TokenRow("a", "d", [3, 4, 4], [0, 1, 1], [])], 6)
    assert labels.tolist() == [0, 0, 0, 0, 2, 0]
    assert everything.tolist() == [0, 0, 0, 1, 2, 0]


def test_an_id_beyond_the_target_is_refused_by_row() -> None:
    with pytest.raises(EyasError) as error:
        count_tokens([TokenRow("bad", "d", [9], [1], [])], 6)
    assert error.value.record == "bad"


@pytest.mark.parametrize("size", [0, 99])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(EyasError, match="impossible size"):
        select(counts({}, 16), counts({}, 16), size, 13, [1])


def test_coverage_is_by_dataset_and_together() -> None:
    rows = [TokenRow("a", "x", [1, 2], [1, 1], []), TokenRow("b", "y", [1, 1, 3], [0, 1, 1], [])]
    assert coverage(rows, np.array([1]), 5) == {"x": 0.5, "y": 0.5, "all": 0.5}


def test_held_out_rows_change_no_count(tmp_path: Path, tiny_target: Path) -> None:
    from eyas.core.artefact import Out, open_workbench
    from eyas.core.contract import target_source
    from eyas.core.counts import Counts
    from eyas.core.files import write_whole
    from eyas.core.manifest import Manifest, artefact_source, measured
    from eyas.vocab.options import VocabOptions
    from eyas.vocab.stage import run

    made = []
    for name, held in (("a", [7, 8]), ("b", [9, 9, 9])):
        folder = tmp_path / name
        with open_workbench("merge", 1, None, {}, Out(folder)) as work:
            assert not isinstance(work, Manifest)
            write_whole(folder / "train.jsonl", TokenRow("a", "d", [3, 4], [0, 1], []).line())
            write_whole(folder / "eval.jsonl", TokenRow("h", "h", held, [1] * len(held), []).line())
            work.publish([measured(folder, f, 1, 1) for f in ("train.jsonl", "eval.jsonl")], Counts(1, 1), {})
        inputs = {"merge": artefact_source(folder, "merge"), "target": target_source(tiny_target)}
        run(VocabOptions(size=16), inputs, Out(tmp_path / f"{name}-vocab"))
        made.append((tmp_path / f"{name}-vocab" / "vocab.safetensors").read_bytes())
    assert made[0] == made[1], "the held-out rows leaked into the draft vocabulary"
