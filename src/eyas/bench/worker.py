"""The work of one process: decode a prompt in one setting. Target and drafter are loaded once a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eyas.core.rows import turns
from eyas.drafter.network import Drafter
from eyas.drafter.walk import walk_store
from eyas.engines.hf import DTYPES, HfTarget
from eyas.export.load import load_exported
from eyas.states.store import NO_TEACHER, StateRow

from .decoded import Decoded
from .decoder import decode
from .plain import decode_plainly
from .verdict import PLAIN


@dataclass(frozen=True)
class Load:
    """What a process loads: the target and the drafter exported for `engine`, in the same number type."""

    target: Path
    drafter: Path
    engine: str
    dtype: str
    threads: int


@dataclass(frozen=True)
class Task:
    """One prompt (the row's own ids) in one setting; draft_tokens 0 is plain decoding.

    stored: the answer as the row has it, cut to `limit`. walks: the settings that a plain answer which
    differs from it is walked with.
    """

    set: str
    prompt: str
    draft_tokens: int
    ids: list[int]
    stored: list[int]
    limit: int
    walks: tuple[int, ...]

    @property
    def setting(self) -> str:
        return "plain" if self.draft_tokens == PLAIN else f"drafts={self.draft_tokens}"

    @property
    def unit(self) -> str:
        return f"{self.set}/{self.setting}/{self.prompt}"


@dataclass(frozen=True)
class _Loaded:
    target: HfTarget
    drafter: Drafter
    boundaries: list[int]


_loaded: _Loaded | None = None


def load(what: Load) -> None:
    """Set this process up."""
    global _loaded
    target = HfTarget(what.target, what.dtype, what.threads)
    embedding = target.model.get_input_embeddings().weight.detach()
    drafter, boundaries = load_exported(what.drafter, what.engine, target.facts, embedding)
    _loaded = _Loaded(target, drafter.to(DTYPES[what.dtype]), boundaries)


def do(task: Task) -> dict[str, Any]:
    """The task's line of results.jsonl."""
    assert _loaded is not None
    target, drafter = _loaded.target, _loaded.drafter
    if task.draft_tokens == PLAIN:
        decoded = decode_plainly(target, task.ids, task.limit)
    else:
        decoded = decode(target, drafter, _loaded.boundaries, task.ids, task.draft_tokens, task.limit)
    line = result_line(task, decoded)
    if task.draft_tokens == PLAIN and decoded.tokens != task.stored:
        line["greedy_difference"] = greedy_difference(task, decoded.tokens)
    return line


def result_line(task: Task, decoded: Decoded) -> dict[str, Any]:
    """Times are seconds after the first token, which stands apart."""
    return {
        "set": task.set,
        "setting": task.setting,
        "prompt": task.prompt,
        "draft_tokens": task.draft_tokens,
        "prompt_tokens": len(task.ids),
        "tokens": decoded.tokens,
        "rounds": decoded.rounds,
        "accepted": decoded.accepted,
        "first_cpu_s": decoded.first.cpu,
        "cpu_s": decoded.spent.cpu,
        "wall_s": decoded.spent.wall,
        "draft_cpu_s": decoded.drafting,
        "greedy_difference": None,
    }


def greedy_difference(task: Task, plain: list[int]) -> dict[str, Any]:
    """Where the stored text leaves the plain one, how near the choice was, and the walks of the plain text
    on states captured anew."""
    assert _loaded is not None
    ids = task.ids + plain
    with torch.inference_mode():
        aux, last = _loaded.target.states([ids], _loaded.boundaries)[0]
    mask = torch.tensor([0] * len(task.ids) + [1] * len(plain), dtype=torch.bool)
    teacher = torch.full((len(ids),), NO_TEACHER)
    row = StateRow(task.prompt, task.set, [], torch.tensor(ids), mask, teacher, aux.float(), last.float())
    at = first_difference(plain, task.stored)
    return {
        "at": at,
        "gap": gap_after((task.ids + plain)[: len(task.ids) + at]),
        "walks": {
            str(drafts): walk_store(_loaded.drafter, [row], drafts).rows[0].rounds for drafts in task.walks
        },
    }


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    """The first place where two lists differ, the end of the shorter included."""
    shared = min(len(left), len(right))
    return next((i for i in range(shared) if left[i] != right[i]), shared)


def gap_after(ids: list[int]) -> float:
    """Gap between the two highest logits of the target after `ids`."""
    assert _loaded is not None
    with torch.inference_mode():
        _, last = _loaded.target.states([ids], _loaded.boundaries)[0]
        best = _loaded.target.head(last[-1:])[0].float().topk(2).values
    return float(best[0] - best[1])


def first_turn(row: StateRow, limit: int) -> StateRow:
    """The row up to its first turn's end, at most `limit` of that turn's tokens, with that turn alone as
    labels: what decoding from the row's prompt can give."""
    first, end = turns(row.loss_mask_T.tolist())[0]
    stop = min(end + 1, first + limit)
    mask = torch.zeros(stop, dtype=torch.bool)
    mask[first:] = True
    return replace(
        row,
        input_ids_T=row.input_ids_T[:stop],
        loss_mask_T=mask,
        teacher_T=row.teacher_T[:stop],
        aux_TAH=row.aux_TAH[:stop],
        last_TH=row.last_TH[:stop],
    )
