"""What the user decides about hidden states."""

from __future__ import annotations

from eyas.core.options import no_content, options

STAGE = "extract"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class ExtractOptions:
    """boundaries: aux boundaries, rising; None for [2, L//2, L-3] of the target. codec: how training states
    are stored, "bfloat16" or "float32"; held-out and development rows are always stored in dtype.
    dtype: number type of the target. batch_tokens: padded tokens of a forward. shard_tokens: a shard is
    closed when it holds so many. threads: of each process.
    """

    boundaries: tuple[int, ...] | None = None
    codec: str = "bfloat16"
    dtype: str = "float32"
    batch_tokens: int = 4096
    shard_tokens: int = 16384
    threads: int = 1
    workers: int = no_content(2)
