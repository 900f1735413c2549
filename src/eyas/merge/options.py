"""What the user decides about the merge."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field
from typing import Literal

from eyas.core.errors import EyasError
from eyas.core.options import no_content, options

STAGE = "merge"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


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

    def check(self, datasets: Set[str]) -> None:
        """EyasError for a value that makes no sense or a name that is none of `datasets`."""
        for name in ("max_seq_len", "workers"):
            self._require(name, getattr(self, name) >= 1, "1 or more")
        self._require("min_trainable", self.min_trainable >= 0, "0 or more")
        self._require("min_kept", 0 <= self.min_kept <= 1, "a share from 0 to 1")
        self._require("dev_fraction", 0 <= self.dev_fraction < 1, "a fraction from 0 to below 1")
        self._require("cap", all(cap >= 1 for cap in self.cap.values()), "1 or more")
        self._require("cap_tokens", all(cap >= 1 for cap in self.cap_tokens.values()), "1 or more")
        self._require("sample", all(0 < share <= 1 for share in self.sample.values()), "fractions up to 1")
        for field_name in ("exclude", *_OF_DATASETS):
            for name in getattr(self, field_name):
                if name not in datasets:
                    raise EyasError(
                        f"{_flag(field_name)} names a dataset that is not there",
                        expected=f"one of {', '.join(sorted(datasets))}",
                        found=name,
                        mend="correct the name",
                    )
        for field_name in _OF_DATASETS:
            for name in getattr(self, field_name):
                if name in self.exclude:
                    raise EyasError(
                        f"{_flag(field_name)} names a dataset that --exclude leaves out",
                        found=name,
                        mend="drop one of the two",
                    )

    def _require(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            raise EyasError(
                f"{_flag(name)} has a value that makes no sense",
                expected=expected,
                found=getattr(self, name),
                mend="correct the value",
            )


_OF_DATASETS = ("cap", "cap_tokens", "sample", "heldout")


def _flag(field_name: str) -> str:
    return f"--{field_name.replace('_', '-')}"
