"""What `eyas bench` is asked, and what it has found so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eyas.core.contract import TargetFacts

from .blocks import Blocks
from .compare import InTurns
from .hints import Trial
from .shape import Shape


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """drafter None: none is there yet (break-even), and `shape` is that of the planned one. engine: hf, vllm or a URL.
    limit: questions of each set. tree: width of draft trees, hf alone. logs: folder of the servers' logs. blocks: what
    was measured before, and where what is measured is kept."""

    target: Path
    drafter: Path | None
    prompts: Sequence[Path]
    engine: str = "hf"
    draft_tokens: Sequence[int] = (3,)
    concurrency: Sequence[int] = (1,)
    max_tokens: int = 128
    temperature: float = 0.0
    baseline_url: str | None = None
    limit: int | None = None
    dtype: str | None = None
    threads: int = 1
    tree: int | None = None
    random_weights: bool = False
    shape: Shape | None = None
    logs: Path | None = None
    blocks: Blocks = field(default_factory=Blocks)


@dataclass
class Work:
    """shape: of the drafter of random weights, when it is known."""

    job: BenchJob
    facts: TargetFacts
    turns: InTurns
    folder: Path | None
    folder_engine: str
    notes: list[str] = field(default_factory=list)
    engine_version: str | None = None
    trial: Trial | None = None
    shape: Shape | None = None
