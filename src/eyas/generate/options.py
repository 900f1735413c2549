"""What the user decides about generation."""

from __future__ import annotations

from eyas.core.options import no_content, options

STAGE = "generate"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class DatasetChoice:
    """One dataset's share in a run.

    cap: most conversations to take. sample: share of them to take first (0..1]. Both draw by a hash of
    seed, dataset and id. answers: "generate", or "given" to keep the answers that the file holds.
    """

    name: str
    cap: int | None = None
    sample: float | None = None
    answers: str = "generate"


@options
class GenerateOptions:
    """datasets: in the order of their output. engine: "hf". max_new_tokens: tokens an answer is cut at.
    max_prompt_tokens: longer prompts are dropped and counted. batch_rows: prompts of a fixed batch.
    dtype, threads (of each process): part of the numbers, so of the fingerprint. seed: of the draws.
    """

    datasets: tuple[DatasetChoice, ...] = ()
    engine: str = "hf"
    max_new_tokens: int = 1024
    max_prompt_tokens: int = 4096
    batch_rows: int = 48
    dtype: str = "float32"
    threads: int = 1
    seed: int = 42
    workers: int = no_content(2)
