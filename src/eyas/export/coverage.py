"""How much of the training labels a draft vocabulary covers, against the best of its size (C033)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError

LEAST_OF_BEST = 0.95
"""A map that covers less than this part of the best possible was not chosen by these counts."""


@dataclass(frozen=True)
class Coverage:
    """Labels inside the draft vocabulary, inside the best vocabulary of its size, and all of them."""

    hit: int
    best: int
    all: int

    @property
    def share(self) -> float:
        return self.hit / self.all

    @property
    def best_share(self) -> float:
        return self.best / self.all

    @property
    def is_enough(self) -> bool:
        return self.hit >= LEAST_OF_BEST * self.best

    def __str__(self) -> str:
        return f"coverage is {self.hit}/{self.all}, best possible is {self.best}/{self.all}"


def measure(
    target_ids_R: Tensor, counts_V: Tensor, tokenizer_length: int | None = None, stop_ids: Sequence[int] = ()
) -> Coverage:
    """counts_V [V]: how often each target id is a training label.

    The best possible is the best of ids below tokenizer_length, as only they may be drafted, that holds those of the
    stop ids that the map holds.
    """
    held = torch.isin(torch.tensor(stop_ids, dtype=torch.int64), target_ids_R)
    forced = torch.tensor(stop_ids, dtype=torch.int64)[held].unique()
    others = counts_V[:tokenizer_length].clone()
    others[forced] = 0
    best = others.sort(descending=True).values[: len(target_ids_R) - len(forced)]
    return Coverage(
        int(counts_V[target_ids_R].sum()), int(counts_V[forced].sum() + best.sum()), int(counts_V.sum())
    )


def measure_for(facts: TargetFacts | None, target_ids_R: Tensor, counts_V: Tensor) -> Coverage:
    """`measure` by what the target allows; by all ids where the target is not known."""
    if facts is None:
        return measure(target_ids_R, counts_V)
    return measure(target_ids_R, counts_V, facts.tokenizer_length, facts.eos_ids)


def read_counts(path: Path) -> Tensor:
    """`counts` [V] of a vocab artefact's folder or of its vocab.safetensors."""
    file = path / "vocab.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise EyasError("no token counts are there", file=file, mend="give a folder that `eyas vocab` wrote")
    tables = load_file(file)
    if "counts" not in tables:
        raise EyasError(
            "the file holds no token counts",
            file=file,
            expected="a tensor `counts`",
            found=", ".join(sorted(tables)),
            mend="give a folder that `eyas vocab` wrote",
        )
    return tables["counts"]
