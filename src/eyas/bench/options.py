"""What a user decides about a benchmark."""

from __future__ import annotations

from eyas.core.options import no_content, options

STAGE = "bench"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class BenchOptions:
    """The walk goes over all held-out rows whatever stands here; these are about real decoding."""

    draft_tokens: tuple[int, ...] = (1, 2, 3)
    """Numbers of drafts a round to decode with."""
    prompts: int = 6
    """Held-out rows to decode, spread over the datasets."""
    max_new_tokens: int = 64
    """Tokens to decode of each, at most as many as the row's answer has."""
    threads: int = 1
    """CPU threads of each process; times are CPU times, so 1 makes them comparable."""
    dtype: str = "float32"
    """Number type of target and drafter; outputs must be identical in float32."""
    seed: int = 42
    """Which rows are decoded."""
    workers: int = no_content(2)
    """Processes that decode side by side."""
