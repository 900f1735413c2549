"""Boundaries in each engine's numbers, and back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.core.contract import TargetFacts, read_facts
from eyas.core.errors import EyasError
from eyas.export.layer_ids import from_engine, to_engine

LLAMA = ("llama", "qwen3", "smollm3", "glm4")
DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25")


def facts(kind: str, layers: int) -> TargetFacts:
    fields = {field.name: None for field in dataclasses.fields(TargetFacts)}
    return TargetFacts(**{**fields, "folder": Path(), "model_type": kind, "num_layers": layers})


@pytest.mark.parametrize("kind", LLAMA)
def test_sglang_counts_one_less_for_a_llama_type_target(kind: str) -> None:
    assert to_engine("sglang", [2, 15, 27], facts(kind, 30)) == [1, 14, 26]
    assert to_engine("vllm", [2, 15, 27], facts(kind, 30)) == [2, 15, 27]


@pytest.mark.parametrize("kind", DEEPSEEK)
def test_both_engines_take_boundaries_for_a_kimi_or_deepseek_target(kind: str) -> None:
    assert to_engine("sglang", [2, 30, 58], facts(kind, 61)) == [2, 30, 58]
    assert to_engine("vllm", [2, 30, 58], facts(kind, 61)) == [2, 30, 58]


@pytest.mark.parametrize("kind", DEEPSEEK)
def test_ids_that_begin_with_one_mean_outputs_to_sglang(kind: str) -> None:
    assert from_engine("sglang", [1, 29, 57], facts(kind, 61)) == [2, 30, 58]
    with pytest.raises(EyasError, match="cannot read these aux boundaries"):
        to_engine("sglang", [1, 30, 58], facts(kind, 61))


@pytest.mark.parametrize("boundaries", [[0, 15, 27], [2, 15, 30]])
def test_states_that_sglang_never_gives_are_refused(boundaries: list[int]) -> None:
    with pytest.raises(EyasError) as caught:
        to_engine("sglang", boundaries, facts("llama", 30))
    assert "layers 1 to 29" in caught.value.expected
    assert to_engine("vllm", boundaries, facts("llama", 30)) == boundaries


@given(
    boundaries=st.sets(st.integers(2, 60), min_size=1, max_size=5),
    engine=st.sampled_from(["sglang", "vllm"]),
    kind=st.sampled_from([*LLAMA, *DEEPSEEK, "gpt_oss"]),
)
def test_ids_read_back_as_the_boundaries_they_were_made_of(
    boundaries: set[int], engine: str, kind: str
) -> None:
    rising, of = sorted(boundaries), facts(kind, 61)
    assert from_engine(engine, to_engine(engine, rising, of), of) == rising


def test_the_real_facts_carry_the_model_type(target_folder: Path) -> None:
    assert read_facts(target_folder).model_type == "llama"
