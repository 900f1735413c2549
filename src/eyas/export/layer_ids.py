"""Aux boundaries as each engine numbers them.

A boundary b is the residual stream after b decoder layers, so the input of layer b. vLLM reads an id as
a boundary and sorts the list, for its own format and for that of speculators. TensorRT-LLM captures the
output of layer id. SGLang adds 1 to each id (it captures before layer id + 1), except for targets of its
deepseek_v2 class, where since its pull request 25454 it adds 1 only if the first id is 1, and for those
whose ids are boundaries in any case.
"""

from __future__ import annotations

from collections.abc import Sequence

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError

ENGINES = ("sglang", "vllm", "speculators", "trtllm")

_SORTED = frozenset({"vllm", "speculators"})
_SGLANG_DEEPSEEK = frozenset({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "kimi_vl"})
_SGLANG_BOUNDARIES = frozenset({"deepseek_v4", "gpt_oss"})


def to_engine(engine: str, boundaries: Sequence[int], facts: TargetFacts) -> list[int]:
    """The layer ids that `engine` reads as these boundaries; EyasError where no ids give them."""
    require_engine(engine)
    given = list(boundaries)
    assert given == sorted(set(given)), f"boundaries rise: the columns of fc follow them, got {given}"
    if engine in _SORTED:
        return given
    layers, kind = facts.num_layers, facts.model_type
    if engine == "trtllm":
        if given[0] < 1 or given[-1] > layers:
            raise _unreadable(f"TensorRT-LLM gives the outputs of layers 0 to {layers - 1} alone", given)
        return [b - 1 for b in given]
    if given[0] < 1 or given[-1] >= layers:
        raise _unreadable(f"SGLang gives the states before the layers 1 to {layers - 1} alone", given)
    if kind in _SGLANG_BOUNDARIES:
        return given
    if kind in _SGLANG_DEEPSEEK:
        if given[0] == 1:
            raise _unreadable("SGLang adds 1 to all ids of such a target if the first is 1", given)
        return given
    return [b - 1 for b in given]


def from_engine(engine: str, ids: Sequence[int], facts: TargetFacts) -> list[int]:
    """The boundaries that `engine` captures for these layer ids."""
    require_engine(engine)
    if engine in _SORTED:
        return sorted(set(ids))
    if engine == "trtllm":
        return sorted(i + 1 for i in set(ids))
    kind = facts.model_type
    as_they_are = kind in _SGLANG_BOUNDARIES or (kind in _SGLANG_DEEPSEEK and ids[0] != 1)
    return list(ids) if as_they_are else [i + 1 for i in ids]


def require_engine(engine: str) -> None:
    if engine not in ENGINES:
        raise EyasError("there is no such engine to export for", expected=", ".join(ENGINES), found=engine)


def _unreadable(why: str, boundaries: list[int]) -> EyasError:
    return EyasError(
        "the engine cannot read these aux boundaries",
        expected=why,
        found=str(boundaries),
        mend="extract and train with other `boundaries`, or export for vllm alone",
    )
