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
from eyas.export.load_as import load_as_engine
from eyas.export.options import ExportOptions

from .random_drafter import random_drafter
from .shape import Shape
from .work import Work


def shape_of(work: Work) -> Shape:
    """What is to be measured with random weights: the shape that was asked for, else that of the drafter given."""
    if work.shape is None:
        assert work.folder is not None
        trained, boundaries = load_as_engine(work.folder, work.folder_engine, work.facts)
        work.shape = Shape(trained.config, tuple(boundaries))
    return work.shape


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
