"""A drafter's folder loaded as an engine loads it, whoever made it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError
from eyas.drafter.network import Drafter
from eyas.drafter.target_weights import TargetWeights

from .check import check
from .names import EMBEDDING, HEAD
from .rules import MISSING, REFUSED


def load_as_engine(
    folder: Path, engine: str, facts: TargetFacts, embedding_VH: Tensor | None = None
) -> tuple[Drafter, list[int]]:
    """(drafter, aux boundaries) as `engine` would have them. EyasError where it would not start, or would leave a
    tensor at random; a wrong flag, id or map is loaded as wrong as it is, since its accept length shows it.

    embedding_VH: the target's, read from its folder unless given.
    """
    report = check(folder, engine, facts)
    broken = [line for line in report.tensors if line.fate in (MISSING, REFUSED)]
    if report.config is None or broken:
        found = f"{broken[0].tensor} is {broken[0].fate}: {broken[0].why}" if broken else report.faults[0]
        raise EyasError(
            f"{engine} does not load this drafter",
            file=folder,
            found=found,
            mend=f"see `eyas export --check {folder} --engine {engine}`",
        )
    weights = TargetWeights(facts.folder)
    drafter = Drafter(report.config)
    state = {name: tensor for name, tensor in report.state.items() if name != EMBEDDING}
    dtype = state["fc.weight"].dtype
    if HEAD not in state:
        state[HEAD] = weights.head().to(dtype)
    if "d2t" not in state:
        state["d2t"] = torch.zeros(report.config.draft_vocab_size, dtype=torch.int64)
    state["d2t"] = state["d2t"].to(torch.int64)
    if "t2d" not in state:
        marks = torch.zeros(report.config.vocab_size, dtype=torch.bool)
        marks[state["d2t"] + torch.arange(len(state["d2t"]))] = True
        state["t2d"] = marks
    drafter = drafter.to(dtype)
    drafter.load_state_dict(state, strict=False)
    shared = weights.embedding() if embedding_VH is None else embedding_VH
    stored = report.state.get(EMBEDDING)
    if report.config.has_own_embedding:
        assert stored is not None
        drafter.load_state_dict({EMBEDDING: stored}, strict=False)
    else:
        takes_own = stored is not None and engine in ("vllm", "speculators")
        drafter.share_embedding(stored if takes_own and stored is not None else shared)
    assert report.boundaries is not None
    return drafter.requires_grad_(False).eval(), report.boundaries
