"""An exported folder, read back the way its engine reads it."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError
from eyas.drafter.network import Drafter

from .checkpoint import CONFIG, WEIGHTS
from .engine_config import read_engine_config
from .layer_ids import ENGINES
from .names import EMBEDDING, require_names
from .tensors import network_names


def load_exported(
    folder: Path, engine: str, facts: TargetFacts, embedding_VH: Tensor | None
) -> tuple[Drafter, list[int]]:
    """(drafter in the stored type, aux boundaries) of the folder that was written for `engine`.

    embedding_VH: the target's, needed unless the drafter has its own; it is shared, not copied. Missing,
    unknown and misshapen tensors are refused, wrapped names too: SGLang drops them in silence.
    """
    config, boundaries = read_engine_config(folder / CONFIG, engine, facts)
    file = folder / WEIGHTS
    if not file.is_file():
        raise EyasError("the exported folder has no weights", file=file, mend="export the checkpoint again")
    state, copy = network_names(engine, load_file(file), config)
    require_names(state, config, file)
    drafter = Drafter(config).to(state["fc.weight"].dtype)
    missing, _ = drafter.load_state_dict(state, strict=False)
    assert set(missing) <= {EMBEDDING}
    if not config.has_own_embedding:
        shared = embedding_VH if copy is None else copy
        assert shared is not None, "this drafter shares the target's embedding"
        drafter.share_embedding(shared)
    drafter.requires_grad_(False)
    return drafter.eval(), boundaries


_PREFERRED = ("vllm", "sglang", "speculators", "trtllm")


def engine_of(artefact: Path) -> str:
    """An engine that the export artefact has a folder for; vLLM's first."""
    for engine in _PREFERRED:
        if (artefact / engine / WEIGHTS).is_file():
            return engine
    raise EyasError(
        "the export artefact has no engine's folder",
        file=artefact,
        expected=" or ".join(ENGINES),
        mend="export again with `eyas export`",
    )
