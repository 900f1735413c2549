"""What must hold of the decoded prompts, and what may excuse it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.core.errors import FaultFound
from eyas.drafter.walk import Walk

from .verdict import PLAIN
from .worker import Task, first_difference

NEAR_TIE = 1e-4
"""Gap of the two highest logits below which float32 on another batch shape may choose the other token."""


@dataclass
class Findings:
    """faults: what must not be. differences: rows whose stored text is not the single-stream greedy one.
    near_ties: speculative outputs that leave the plain one at a near tie."""

    faults: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    near_ties: list[dict[str, Any]] = field(default_factory=list)
    identical: bool = True


def check_walk(recomputed: Walk, stored: dict[str, Any], file: object) -> None:
    """The exported folder must walk as the trained drafter did, row by row."""
    theirs = {(row["dataset"], row["id"]): row["rounds"] for row in stored["rows"]}
    ours = {(row.dataset, row.id): row.rounds for row in recomputed.rows}
    if ours.keys() != theirs.keys():
        raise FaultFound(
            "training walked other held-out rows than these",
            file=str(file),
            expected=f"{len(ours)} rows",
            found=f"{len(theirs)} rows",
            mend="give the extract artefact that the drafter was trained with",
        )
    unequal = [key for key in ours if ours[key] != theirs[key]]
    if unequal:
        dataset, row = unequal[0]
        raise FaultFound(
            f"the exported drafter is not the trained one: {len(unequal)} of {len(ours)} held-out rows walk otherwise",
            file=str(file),
            record=f"{dataset}/{row}",
            expected=f"tokens of each round {theirs[unequal[0]]}",
            found=str(ours[unequal[0]]),
            mend="export the checkpoint again with `eyas export`",
        )


def check_decoded(
    tasks: Sequence[Task],
    lines: Sequence[dict[str, Any]],
    walks: dict[tuple[str, str, int], list[int]],
    own_greedy: set[tuple[str, str]],
    exact: bool,
    gap_after: Callable[[Task, list[int]], float],
) -> Findings:
    """Compare plain outputs with the rows, speculative ones with plain ones, and rounds with the walk's.

    walks: rounds by set, prompt and number of drafts. exact: float32, where nothing but a near tie excuses
    a difference. gap_after(task, tokens): the gap of the top two logits after these tokens of its answer.
    """
    found = Findings()
    plain = {(t.set, t.prompt): line for t, line in zip(tasks, lines, strict=True) if t.draft_tokens == PLAIN}
    for task, line in zip(tasks, lines, strict=True):
        key = (task.set, task.prompt)
        other = plain[key]
        if task.draft_tokens == PLAIN:
            _check_stored(task, line, key in own_greedy and exact, found)
        elif line["tokens"] != other["tokens"]:
            _check_identical(task, line["tokens"], other["tokens"], exact, gap_after, found)
        elif exact:
            difference = other["greedy_difference"]
            walked = (
                difference["walks"][str(task.draft_tokens)] if difference else walks[*key, task.draft_tokens]
            )
            if line["rounds"] != walked:
                found.faults.append(
                    _fault(task, "decoding and the walk give other rounds", walked, line["rounds"])
                )
    return found


def raise_faults(found: Findings, file: object) -> None:
    """FaultFound for the first fault, with the number of all."""
    if found.faults:
        first = found.faults[0]
        raise FaultFound(
            f"{first['what']} ({len(found.faults)} such faults in this benchmark)",
            file=str(file),
            record=first["unit"],
            expected=first["expected"],
            found=first["found"],
            mend="this is a fault of Eyas or of the target's kernels, not of the drafter: report the row",
        )


def _check_stored(task: Task, line: dict[str, Any], must_equal: bool, found: Findings) -> None:
    difference = line["greedy_difference"]
    if difference is None:
        return
    excused = not must_equal or difference["gap"] < NEAR_TIE
    found.differences.append(
        {
            "set": task.set,
            "prompt": task.prompt,
            "at": difference["at"],
            "gap": difference["gap"],
            "excused": excused,
        }
    )
    if not excused:
        at = difference["at"]
        found.faults.append(
            _fault(
                task,
                f"the row is not the target's greedy text from token {at} on, and the choice was not near",
                task.stored[at:][:8],
                line["tokens"][at:][:8],
            )
        )


def _check_identical(
    task: Task,
    tokens: list[int],
    plain: list[int],
    exact: bool,
    gap_after: Callable[[Task, list[int]], float],
    found: Findings,
) -> None:
    found.identical = False
    at = first_difference(tokens, plain)
    gap = gap_after(task, plain[:at])
    if gap < NEAR_TIE:
        found.near_ties.append({"unit": task.unit, "at": at, "gap": gap})
    elif exact:
        found.faults.append(_fault(task, "drafting changed the output", plain[at:][:8], tokens[at:][:8]))


def _fault(task: Task, what: str, expected: list[int], found: list[int]) -> dict[str, Any]:
    return {"unit": task.unit, "what": what, "expected": str(expected), "found": str(found)}
