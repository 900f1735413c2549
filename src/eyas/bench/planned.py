"""A drafter of the planned shape with random weights, as a folder that a server loads: its rounds cost what those of
a trained one cost, so it tells what accept length breaks even before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eyas.core.contract import TargetFacts
from eyas.drafter.config import DrafterConfig
from eyas.drafter.network import Drafter
from eyas.drafter.target_weights import TargetWeights
from eyas.export.checkpoint import Checkpoint
from eyas.export.folder import write_folder
from eyas.export.options import ExportOptions

from .random_drafter import random_drafter

DRAFT_VOCAB = 32_000
"""Ids of a planned drafter unless a size is given; what the public heads of large targets have."""


def planned_boundaries(facts: TargetFacts) -> list[int]:
    """The usual three; fewer where a target has so few layers that two of them are one."""
    return sorted(set(facts.default_boundaries))


def planned_config(facts: TargetFacts, draft_vocab: int | None) -> DrafterConfig:
    size = min(draft_vocab or DRAFT_VOCAB, facts.tokenizer_length, facts.vocab_size)
    return DrafterConfig.like_target(facts, len(planned_boundaries(facts)), size)


def planned_drafter(facts: TargetFacts, config: DrafterConfig) -> Drafter:
    """Random weights; ids spread evenly over the tokenizer, so that nothing looks like a lost map."""
    ids = torch.linspace(0, facts.tokenizer_length - 1, config.draft_vocab_size).round().to(torch.int64)
    embedding = None if config.has_own_embedding else TargetWeights(facts.folder).embedding()
    return random_drafter(config, ids, embedding)


def write_planned(
    folder: Path, drafter: Drafter, boundaries: Sequence[int], facts: TargetFacts, dtype: str
) -> None:
    """The drafter as vLLM loads it."""
    state = {name: _typed(tensor, dtype) for name, tensor in drafter.exported_state().items()}
    checkpoint = Checkpoint(
        drafter.config, state, dtype, ("its weights are random: it measures costs alone",)
    )
    training: dict[str, Any] = {"options": {}, "actual": {}}
    write_folder(
        folder, "vllm", checkpoint, list(boundaries), facts, training, ExportOptions(engines=("vllm",))
    )


def _typed(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
