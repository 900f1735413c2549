"""The figures that the manifest, the report and `--json` show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eyas.drafter.walk import Walk

from .checks import Findings
from .verdict import PLAIN, Comparison, sentence, setting
from .worker import Task

Walks = dict[tuple[str, str, int], list[int]]
"""Rounds of each decoded row by dataset, id and number of drafts."""


def figures(
    walk: Walk,
    floors: dict[str, float],
    tasks: Sequence[Task],
    lines: Sequence[dict[str, Any]],
    walks: Walks,
    found: Findings,
) -> dict[str, Any]:
    """`actual` of the bench manifest. Objects by number of drafts are keyed by it as text.

    accept_length: the walk over all held-out rows. accept_length_decoded and walk_decoded: by decoding and
    by the walk, over the decoded prompts; decoded_accept_length and decoded_walk are those of as many
    drafts as accept_length, None if that number was not decoded with.
    """
    assert walk.accept_length is not None
    counts = tasks[0].walks
    settings = {
        n: setting(n, [line for line in lines if line["draft_tokens"] == n]) for n in (PLAIN, *counts)
    }
    compared = {n: Comparison(settings[n], settings[PLAIN]) for n in counts}
    decoded = {n: settings[n].accept_length for n in counts}
    walked = _walked(tasks, lines, walks)
    return {
        "rows": len(lines),
        "tokens": sum(len(line["tokens"]) for line in lines),
        "accept_length": walk.accept_length,
        "accept_length_by_dataset": walk.by_dataset,
        "accept_length_drafts": walk.drafts,
        "floors": floors,
        "decoded_prompts": len(lines) // len(settings),
        "decoded_accept_length": decoded.get(walk.drafts),
        "decoded_walk": walked.get(walk.drafts),
        "accept_length_decoded": {str(n): decoded[n] for n in counts},
        "walk_decoded": {str(n): walked[n] for n in counts},
        "acceptance_by_position": {str(n): settings[n].acceptance_by_position for n in counts},
        "identical_outputs": found.identical,
        "near_ties": found.near_ties,
        "greedy_differences": {"count": len(found.differences), "rows": found.differences},
        "speedup": {str(n): compared[n].speedup for n in counts},
        "wall_speedup": {str(n): compared[n].wall_speedup for n in counts},
        "round_cost": {str(n): compared[n].round_cost for n in counts},
        "draft_cost": {str(n): compared[n].draft_cost for n in counts},
        "plain_cpu_s_per_token": settings[PLAIN].cpu / settings[PLAIN].tokens,
        "verdict": sentence(walk.accept_length, walk.drafts, list(compared.values())),
    }


def _walked(tasks: Sequence[Task], lines: Sequence[dict[str, Any]], walks: Walks) -> dict[int, float]:
    """Accept length by the walk over the decoded prompts, on the plain text where the stored one differs."""
    rounds: dict[int, list[int]] = {n: [] for n in tasks[0].walks}
    for task, line in zip(tasks, lines, strict=True):
        if task.draft_tokens != PLAIN:
            continue
        difference = line["greedy_difference"]
        for n in task.walks:
            rounds[n] += difference["walks"][str(n)] if difference else walks[task.set, task.prompt, n]
    return {n: sum(of) / len(of) for n, of in rounds.items()}
