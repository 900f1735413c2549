"""A drafter's tensors under the names, and in the types, that one engine reads.

sglang and trtllm share the target's embedding and take the network's own names; vLLM does both too.
speculators names the layer `layers.0` and stores the embedding; TensorRT-LLM's map is int32. A full
vocabulary has no map: vLLM has no parameter for one then and would refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eyas.drafter.config import DrafterConfig

from .names import EMBEDDING, MAPS

LAYER = "midlayer."
SPECULATORS_LAYER = "layers.0."


def stored_for(
    engine: str, state: Mapping[str, Tensor], config: DrafterConfig, embedding_VH: Tensor | None
) -> dict[str, Tensor]:
    """The tensors of `engine`'s file, sorted by name. embedding_VH: the target's, for an engine that wants a copy."""
    stored = dict(state)
    if config.draft_vocab_size == config.vocab_size:
        stored = {name: tensor for name, tensor in stored.items() if name not in MAPS}
    if engine == "trtllm" and "d2t" in stored:
        stored["d2t"] = stored["d2t"].to(torch.int32)
    if engine == "speculators":
        stored = {name.replace(LAYER, SPECULATORS_LAYER): tensor for name, tensor in stored.items()}
        if EMBEDDING not in stored:
            assert embedding_VH is not None
            stored[EMBEDDING] = embedding_VH.to(stored["fc.weight"].dtype)
    return {name: stored[name].contiguous() for name in sorted(stored)}


def wants_embedding(engine: str) -> bool:
    """True where a copy of the target's embedding belongs into the file."""
    return engine == "speculators"


def network_names(
    engine: str, stored: Mapping[str, Tensor], config: DrafterConfig
) -> tuple[dict[str, Tensor], Tensor | None]:
    """(tensors under the network's names and types, the stored copy of a shared embedding or None)."""
    state = dict(stored)
    if engine == "speculators":
        state = {name.replace(SPECULATORS_LAYER, LAYER): tensor for name, tensor in state.items()}
    if "d2t" in state:
        state["d2t"] = state["d2t"].to(torch.int64)
    elif config.draft_vocab_size == config.vocab_size:
        state["d2t"] = torch.zeros(config.draft_vocab_size, dtype=torch.int64)
        state["t2d"] = torch.ones(config.vocab_size, dtype=torch.bool)
    copy = None
    if wants_embedding(engine) and not config.has_own_embedding:
        copy = state.pop(EMBEDDING, None)
    return state, copy
