"""What the measured figures mean: speed-up, round cost, break-even, and one sentence in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eyas.report.text import counted

PLAIN = 0
"""draft_tokens of plain decoding."""


@dataclass(frozen=True)
class Setting:
    """Plain decoding or decoding with `draft_tokens` drafts, over all decoded prompts.

    tokens: decoded after the first of each prompt. rounds: forwards of the target for them. cpu, wall,
    drafting: seconds for them, the last the drafter's part of cpu. accepted: how often each draft position
    was accepted and kept.
    """

    draft_tokens: int
    tokens: int
    rounds: int
    cpu: float
    wall: float
    drafting: float
    accepted: tuple[int, ...]

    @property
    def accept_length(self) -> float:
        return self.tokens / self.rounds

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of rounds whose draft at each position was accepted (all drafts before it were, too)."""
        return [count / self.rounds for count in self.accepted]


def setting(draft_tokens: int, lines: Sequence[dict[str, Any]]) -> Setting:
    """The sum of the result lines of one setting. Plain decoding has a round for each token."""
    tokens = sum(len(line["tokens"]) - 1 for line in lines)
    accepted = [count for line in lines for count in line["accepted"]]
    return Setting(
        draft_tokens,
        tokens,
        sum(len(line["rounds"]) for line in lines) if draft_tokens else tokens,
        sum(line["cpu_s"] for line in lines),
        sum(line["wall_s"] for line in lines),
        sum(line["draft_cpu_s"] for line in lines),
        tuple(sum(count > k for count in accepted) for k in range(draft_tokens)),
    )


@dataclass(frozen=True)
class Comparison:
    """Decoding with drafts against plain decoding. round_cost c is also the accept length that breaks even.

    speedup = tokens a CPU second / those of plain decoding; round_cost = accept length / speedup, in plain
    steps; draft_cost: the drafter's part of it.
    """

    drafted: Setting
    plain: Setting

    @property
    def speedup(self) -> float:
        return (self.drafted.tokens / self.drafted.cpu) / (self.plain.tokens / self.plain.cpu)

    @property
    def wall_speedup(self) -> float:
        return (self.drafted.tokens / self.drafted.wall) / (self.plain.tokens / self.plain.wall)

    @property
    def round_cost(self) -> float:
        return self.drafted.accept_length / self.speedup

    @property
    def draft_cost(self) -> float:
        return (self.drafted.drafting / self.drafted.rounds) / (self.plain.cpu / self.plain.tokens)


def sentence(walked: float, drafts: int, comparisons: Sequence[Comparison]) -> str:
    """What the accept length means, which number of drafts pays on this machine, and why."""
    best = max(comparisons, key=lambda comparison: comparison.speedup)
    count = best.drafted.draft_tokens
    meaning = (
        f"With {drafts} drafts a verification round gives {walked:.2f} tokens on held-out text "
        f"({walked - 1:.2f} of them drafted)"
    )
    cost = (
        f"a round with {counted(count, 'draft')} takes as long as {best.round_cost:.2f} plain steps "
        f"({best.draft_cost:.2f} of that the drafter) and gives {best.drafted.accept_length:.2f} tokens"
    )
    if best.speedup > 1.0:
        pay = "pays" if count == 1 else "pay"
        pays = (
            f"on this machine {counted(count, 'draft')} {pay} best, {best.speedup:.2f} times plain decoding"
        )
    else:
        pays = f"on this machine no number of drafts pays, the best being {count} at {best.speedup:.2f} of plain speed"
    return f"{meaning}; {pays}, because {cost}; {_others(best, comparisons)}."


def _others(best: Comparison, comparisons: Sequence[Comparison]) -> str:
    """Why the other numbers of drafts do worse: what the last added draft costs and gives."""
    longest = max(comparisons, key=lambda comparison: comparison.drafted.draft_tokens)
    if longest is best:
        return "more drafts were not tried"
    added = longest.drafted.accept_length - best.drafted.accept_length
    price = longest.round_cost - best.round_cost
    return f"{longest.drafted.draft_tokens} drafts add {added:.2f} tokens a round and {price:.2f} plain steps"
