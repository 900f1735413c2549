"""What the user decides about the merge."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from ..core.options import no_content, options


@options
class MergeOptions:
    """Options of the merge stage. Names are names of datasets."""

    max_seq_len: int = 8192
    """Rows longer than this are cut: ids and mask together."""
    seed: int = 42
    """Of the shuffle, and of the lots that samples, caps and the development split draw."""
    exclude: tuple[str, ...] = ()
    """Datasets left out; they are listed with their bytes and never read."""
    cap: dict[str, int] = field(default_factory=dict)
    """At most so many rows of a dataset."""
    cap_tokens: dict[str, int] = field(default_factory=dict)
    """At most so many tokens (after the cut) of a dataset."""
    sample: dict[str, float] = field(default_factory=dict)
    """This fraction of a dataset's rows, each drawn by its own lot."""
    dedup: bool = False
    """Drop rows whose ids and mask (after the cut) an earlier row has."""
    min_trainable: int = 1
    """Rows left with fewer labels than this are dropped."""
    min_kept: float = 0.5
    """Fail if fewer than this share of a dataset's rows are valid and have labels."""
    cut: Literal["token", "turn"] = "token"
    """Cut at max_seq_len exactly, or at the end of the last whole turn that fits."""
    heldout: tuple[str, ...] = ()
    """Datasets that go to the held-out file and never into training."""
    dev_fraction: float = 0.0
    """This fraction of the training conversations goes to the development file."""
    output_format: Literal["jsonl", "parquet"] = "jsonl"
    """Form of the row files."""
    workers: int = no_content(1)
    """Processes; what comes out does not depend on it."""
