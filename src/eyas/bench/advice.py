"""What the cells mean, in words, and what to serve with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eyas.report.text import counted

from .cells import Cell

CHEAP_ROUND = 1.3
"""Up to this round cost nearly all of a longer accept length becomes speed; beyond it the rounds are the limit."""
TAUS = (2.0, 2.5, 3.0)


def pooled(cells: Sequence[Cell]) -> dict[tuple[int, int], dict[str, float | None]]:
    """By (concurrency, draft_tokens), over all sets: accept length, speed-up and round cost. Speed-ups are weighted by
    the plain time of the tokens, that is, total plain time / total drafted time."""
    found: dict[tuple[int, int], dict[str, float | None]] = {}
    for key in sorted({(cell.concurrency, cell.draft_tokens) for cell in cells}):
        of = [cell for cell in cells if (cell.concurrency, cell.draft_tokens) == key]
        rounds = [cell.rounds for cell in of if cell.rounds]
        decoded = [cell.tokens - cell.requests for cell in of]
        tau = sum(decoded) / sum(rounds) if len(rounds) == len(of) else None
        speedup = None
        if all(cell.baseline_tok_s and cell.tok_s for cell in of):
            plain = sum(n / (cell.baseline_tok_s or 1.0) for n, cell in zip(decoded, of, strict=True))
            drafted = sum(n / cell.tok_s for n, cell in zip(decoded, of, strict=True))
            speedup = plain / drafted if drafted else None
        cost = tau / speedup if tau is not None and speedup else None
        found[key] = {"accept_length": tau, "speedup": speedup, "round_cost": cost}
    return found


def serve_with(cells: Sequence[Cell]) -> dict[int, int | None]:
    """The drafts a round to serve with at each concurrency; 0: without a drafter; None: no speed-up was measured."""
    table = pooled(cells)
    found: dict[int, int | None] = {}
    for streams in sorted({streams for streams, _ in table}):
        speeds = {
            drafts: of["speedup"]
            for (at, drafts), of in table.items()
            if at == streams and of["speedup"] is not None
        }
        if not speeds:
            found[streams] = None
            continue
        best = max(speeds, key=lambda drafts: speeds[drafts] or 0.0)
        found[streams] = best if (speeds[best] or 0.0) > 1.0 else 0
    return found


def cell_verdict(tau: float | None, speedup: float | None, cost: float | None) -> str:
    """One setting: what limits it, and what a little more accept length would give."""
    if speedup is None or cost is None or tau is None:
        return "speed-up not measured: give a baseline (--baseline-url, or an engine that Eyas starts)"
    gain = f"0.1 more accept length gives {0.1 / tau:+.0%}"
    if cost > CHEAP_ROUND:
        return f"limited by verification cost: a round takes {cost:.2f} plain steps; {gain}"
    return f"limited by acceptance: a round takes only {cost:.2f} plain steps; {gain}"


def verdict(cells: Sequence[Cell]) -> str:
    """All settings in a few clauses."""
    table, choice = pooled(cells), serve_with(cells)
    if all(drafts is None for drafts in choice.values()):
        taus = [of["accept_length"] for of in table.values() if of["accept_length"] is not None]
        best = f"the accept length is up to {max(taus):.2f}; " if taus else ""
        return f"{best}speed-up not measured, for want of a baseline."
    clauses = []
    for streams, drafts in choice.items():
        if drafts:
            of = table[streams, drafts]
            clauses.append(
                f"at {counted(streams, 'stream')} serve with {counted(drafts, 'draft')}, {of['speedup']:.2f} times"
                f" plain ({cell_verdict(of['accept_length'], of['speedup'], of['round_cost'])})"
            )
        elif drafts == 0:
            nearest = max(
                (d for s, d in table if s == streams), key=lambda d: table[streams, d]["speedup"] or 0.0
            )
            of = table[streams, nearest]
            clauses.append(
                f"at {counted(streams, 'stream')} serve without a drafter: the best, {counted(nearest, 'draft')}, runs"
                f" at {of['speedup']:.2f} of plain speed, with accept length {of['accept_length']:.2f} where"
                f" {of['round_cost']:.2f} breaks even"
            )
    turned = _slower_above(choice)
    return "; ".join([*clauses, *turned]) + "."


def _slower_above(choice: dict[int, int | None]) -> list[str]:
    """`slower above N streams`, if speculation pays up to N and at nothing measured beyond."""
    pays = [streams for streams, drafts in choice.items() if drafts]
    not_above = [
        streams for streams, drafts in choice.items() if drafts == 0 and pays and streams > max(pays)
    ]
    return [f"slower above {max(pays)} streams"] if not_above else []


def break_even(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """For each concurrency and draft length: the accept length that breaks even and the speed-ups of better ones."""
    rows = []
    for (streams, drafts), of in pooled(cells).items():
        cost = of["round_cost"]
        if cost is None:
            continue
        rows.append(
            {
                "concurrency": streams,
                "draft_tokens": drafts,
                "break_even": cost,
                "reachable": cost < drafts + 1,
                "speedup_at": {f"{tau:g}": tau / cost if tau <= drafts + 1 else None for tau in TAUS},
            }
        )
    return rows


def break_even_verdict(rows: Sequence[dict[str, Any]]) -> str:
    """What a planned drafter must do. rows: of `break_even`."""
    if not rows:
        return "The break-even was not measured."
    clauses = []
    for streams in dict.fromkeys(row["concurrency"] for row in rows):
        of = [row for row in rows if row["concurrency"] == streams]
        levels = [
            f"{row['break_even']:.2f} with {counted(row['draft_tokens'], 'draft')}"
            + ("" if row["reachable"] else ", which that many cannot reach")
            for row in of
        ]
        clauses.append(f"at {counted(streams, 'stream')} above {'; '.join(levels)}")
    return f"Measured with random weights, for the cost alone. A drafter of this shape pays {'; '.join(clauses)}."
