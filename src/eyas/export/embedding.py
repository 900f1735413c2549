"""The target's input embedding, read without the rest of the target."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from eyas.core.errors import EyasError


def target_embedding(folder: Path, vocab_size: int) -> Tensor:
    """[V, H] in the type that the target stores it in; EyasError if the weights name none of V rows."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                if name.endswith("embed_tokens.weight") and file.get_slice(name).get_shape()[0] == vocab_size:
                    return file.get_tensor(name)
    raise EyasError(
        "the target's embedding cannot be found",
        file=folder,
        expected=f"a tensor *embed_tokens.weight of {vocab_size} rows",
        mend="use a decoder-only checkpoint with the usual names",
    )
