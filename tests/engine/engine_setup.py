"""Sizes of the engine's check, and what its fixtures give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eyas.bench.cells import Cell, Detail
from eyas.bench.measured import Measured

DRAFTS, TOKENS, PROMPTS, STREAMS = 3, 40, 8, 4


@dataclass(frozen=True)
class Trained:
    """The pipeline's drafter, as exported for vLLM, and the held-out rows that it never saw."""

    folder: Path
    held_out: Path


@dataclass(frozen=True)
class Served:
    """Cells at one and at several streams, and what the drafted server gave at one.

    cpu_cost: the round cost at one stream by the servers' CPU time, prompts included: of a round, over that of a
    token of plain serving. Wall times of two shared cores tell little.
    """

    cells: list[Cell]
    details: list[Detail]
    alone: Measured
    cpu_cost: float
