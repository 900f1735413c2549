"""A training checkpoint, read for export."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.core.contract import TargetFacts
from eyas.core.digest import file_digest, value_digest
from eyas.core.errors import EyasError
from eyas.core.manifest import Source, read_manifest
from eyas.drafter.config import DrafterConfig
from eyas.drafter.positions import differing
from eyas.drafter.target_weights import TargetWeights

from . import names, vocabulary

WEIGHTS = "model.safetensors"
CONFIG = "config.json"

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A drafter's tensors under the names that engines read, all floats of one dtype."""

    config: DrafterConfig
    state: dict[str, Tensor]
    dtype: str
    warnings: tuple[str, ...]

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for name, tensor in self.state.items() if name not in names.MAPS)


def final_step(artefact: Path) -> Path:
    """The newest `step-*` folder of a train artefact; `artefact` itself if that is a checkpoint."""
    if (artefact / WEIGHTS).is_file():
        return artefact
    steps = sorted(
        (int(match[1]), path)
        for path in artefact.glob("step-*")
        if (match := _STEP.fullmatch(path.name)) and (path / WEIGHTS).is_file()
    )
    if not steps:
        raise EyasError(
            "no checkpoint is there",
            file=artefact,
            expected=f"step-*/{WEIGHTS}",
            mend="give a checkpoint folder, or the folder that `eyas train` wrote",
        )
    return steps[-1][1]


def training_of(path: Path) -> dict[str, Any]:
    """`options` and `actual` of the train manifest in `path` or, for one of its steps, beside it; both empty
    for a bare checkpoint."""
    for folder in (path, path.parent):
        manifest = read_manifest(folder)
        if manifest is not None and manifest.stage == "train":
            return {"options": manifest.options, "actual": manifest.actual}
    return {"options": {}, "actual": {}}


def checkpoint_source(path: Path) -> Source:
    """A train artefact by its fingerprint, one of its steps by that and its name, a bare checkpoint by its bytes."""
    own, above = read_manifest(path) if path.is_dir() else None, read_manifest(path.parent)
    if own is not None and own.stage == "train":
        return Source(path, own.fingerprint)
    step = final_step(path)
    if above is not None and above.stage == "train" and step == path:
        return Source(path, value_digest([above.fingerprint, path.name]))
    return Source(path, value_digest([file_digest(step / CONFIG), file_digest(step / WEIGHTS)]))


def read_checkpoint(folder: Path, facts: TargetFacts) -> Checkpoint:
    """The checkpoint in `folder`, held against the target; EyasError for what an engine would get wrong."""
    config = DrafterConfig.read(folder / CONFIG)
    file = folder / WEIGHTS
    if not file.is_file():
        raise EyasError("the checkpoint has no weights", file=file, mend="give a folder of `eyas train`")
    _require_fit(config, facts, folder / CONFIG)
    state = vocabulary.with_maps(names.unwrapped(load_file(file), file), config, file)
    state = _without_shared_embedding(state, config, facts, file)
    names.require_names(state, config, file)
    warning = vocabulary.suspicion(state, config)
    return Checkpoint(config, state, _dtype(state, file), (warning,) if warning else ())


def _require_fit(config: DrafterConfig, facts: TargetFacts, file: Path) -> None:
    """Sizes and positions must be the target's: an engine trusts the draft's config."""
    for name, ours, theirs in (
        ("target_hidden_size", config.target_hidden_size, facts.hidden_size),
        ("vocab_size", config.vocab_size, facts.vocab_size),
        *differing(config, facts),
    ):
        if ours != theirs:
            raise EyasError(
                f"the drafter's {name} is not the target's",
                file=file,
                expected=theirs,
                found=ours,
                mend="give the target that the drafter was trained for",
            )


def _without_shared_embedding(
    state: dict[str, Tensor], config: DrafterConfig, facts: TargetFacts, file: Path
) -> dict[str, Tensor]:
    """Leave out an embedding that is the target's own; refuse one that only looks like it.

    SGLang replaces it by the target's, vLLM uses it: a random one served for real (TorchSpec issue 38).
    """
    if config.has_own_embedding or names.EMBEDDING not in state:
        return state
    given = state[names.EMBEDDING]
    if not torch.equal(given, TargetWeights(facts.folder).embedding().to(given.dtype)):
        raise EyasError(
            "the drafter carries an embedding that is not the target's",
            file=file,
            record=names.EMBEDDING,
            expected="the target's embedding bit for bit, or none",
            mend="leave the embedding out of the checkpoint: engines share the target's",
        )
    return {name: tensor for name, tensor in state.items() if name != names.EMBEDDING}


def _dtype(state: dict[str, Tensor], file: Path) -> str:
    kinds = sorted({str(tensor.dtype) for name, tensor in state.items() if name not in names.MAPS})
    if len(kinds) != 1:
        raise EyasError(
            "the weights are of several number types",
            file=file,
            expected="one",
            found=", ".join(kinds),
            mend="save them in one type",
        )
    return kinds[0].removeprefix("torch.")
