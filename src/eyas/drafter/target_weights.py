"""Single weights of the target, by name, out of its safetensors files; the model is never loaded whole.

Names are found by their endings, since the prefix differs from family to family
(`model.`, `language_model.model.`, `model.language_model.`).
"""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from eyas.core.errors import EyasError

_EMBEDDING = "embed_tokens.weight"
_LAYER_PARTS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)


class TargetWeights:
    """Reads tensors of a checkpoint folder, in the type they are stored in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Path] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files.update(dict.fromkeys(file.keys(), path))
        self._prefix = self._one(_EMBEDDING).removesuffix(_EMBEDDING)

    def embedding(self) -> Tensor:
        """[V, G]"""
        return self._read(self._prefix + _EMBEDDING)

    def head(self) -> Tensor:
        """[V, G]; the embedding where the target ties them."""
        name = self._head_name()
        return self.embedding() if name is None else self._read(name)

    def head_bias(self) -> Tensor | None:
        """[V] for the few heads that have one."""
        name = self._head_name()
        bias = None if name is None else name.removesuffix("weight") + "bias"
        return self._read(bias) if bias in self._files else None

    def final_norm(self) -> Tensor:
        """[G]"""
        return self._read(self._prefix + "norm.weight")

    def layer(self, index: int) -> dict[str, Tensor]:
        """The matrices and norms of a Llama-type layer, without the layer's own prefix in the names."""
        base = f"{self._prefix}layers.{index}."
        missing = [part for part in _LAYER_PARTS if base + part not in self._files]
        if missing:
            raise EyasError(
                "the target's layer is no Llama-type layer, so a drafter cannot start from it",
                file=self.folder,
                expected=f"{base}{missing[0]}",
                mend="set training.init to ridge or random",
            )
        return {part: self._read(base + part) for part in _LAYER_PARTS}

    def _head_name(self) -> str | None:
        found = [name for name in self._files if name == "lm_head.weight" or name.endswith(".lm_head.weight")]
        return found[0] if found else None

    def _one(self, ending: str) -> str:
        found = [name for name in self._files if name == ending or name.endswith("." + ending)]
        if len(found) != 1:
            raise EyasError(
                f"the target's weights hold no single `{ending}`",
                file=self.folder,
                expected="one tensor of that name",
                found=", ".join(found) or "none",
                mend="use a decoder-only text checkpoint with the usual names",
            )
        return found[0]

    def _read(self, name: str) -> Tensor:
        if name not in self._files:
            raise EyasError(
                "a weight of the target is missing",
                file=self.folder,
                expected=name,
                mend="fetch the checkpoint again",
            )
        with safe_open(self._files[name], framework="pt") as file:
            return file.get_tensor(name)
