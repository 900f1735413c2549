"""Names and shapes of a drafter's tensors, and what wrappers of other tools put in front of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from eyas.core.errors import EyasError
from eyas.drafter.config import DrafterConfig
from eyas.drafter.network import Drafter

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
MAPS = ("d2t", "t2d")

_WRAPPERS = frozenset({"draft_model", "_orig_mod", "_fsdp_wrapped_module", "module"})
"""Parts of names that torch.compile, FSDP, DDP and trainers add; no engine knows them, and SGLang drops
such tensors in silence."""


def required_shapes(config: DrafterConfig) -> dict[str, torch.Size]:
    """Shape of each tensor that a drafter's file holds; the embedding only where the drafter has its own."""
    with torch.device("meta"):
        state = Drafter(config).state_dict()
    if not config.has_own_embedding:
        del state[EMBEDDING]
    return {name: tensor.shape for name, tensor in state.items()}


def unwrapped(state: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors under their own names, wrappers taken off wherever they stand in a name."""
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        bare = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        if bare in plain:
            raise EyasError("two tensors have one name without their wrappers", file=file, record=name)
        plain[bare] = tensor
    return plain


def require_names(state: Mapping[str, Tensor], config: DrafterConfig, file: Path) -> None:
    """Refuse missing, unknown and misshapen tensors; engines skip or guess them, most without a word."""
    required = required_shapes(config)
    missing = sorted(required.keys() - state.keys())
    unknown = sorted(state.keys() - required.keys())
    shared = required.keys() & state.keys()
    misshapen = {
        name: list(state[name].shape) for name in sorted(shared) if state[name].shape != required[name]
    }
    if HEAD in missing:
        raise EyasError(
            "the drafter has no head: an engine would draft with random weights",
            file=file,
            expected=f"{HEAD} {list(required[HEAD])}",
            mend="save the head with the checkpoint, or train again",
        )
    if missing or unknown or misshapen:
        raise EyasError(
            "the drafter's tensors are not those that an engine reads",
            file=file,
            expected="exactly the names and shapes of the network",
            found=f"missing {missing}, unknown {unknown}, misshapen {misshapen}",
            mend="export the checkpoint again with `eyas export`",
        )
