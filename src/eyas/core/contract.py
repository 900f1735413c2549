"""Target facts: what the rest of Eyas must know of the target, read from its folder without torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from .digest import bytes_digest, file_digest, value_digest
from .errors import EyasError
from .manifest import Source

_CONTENT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
)

_KEEP_ORIGINAL = ("llama3", "yarn", "longrope")
"""Scalings for which transformers takes original_max_position_embeddings from beside them, as Phi-3 writes it."""


@dataclass(frozen=True)
class TargetFacts:
    """Sizes and conventions of a target.

    vocab_size: rows of its head. tokenizer_length: ids that the tokenizer knows; only those may be
    drafted. eos_ids: ids that end an answer. rope_theta, rope_scaling: see rope_of. logit_scale, soft_cap: what
    the head applies to its logits (1.0 and None for most; Cohere's and Granite's scale, Gemma's cap).
    """

    folder: Path
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tokenizer_length: int
    eos_ids: tuple[int, ...]
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    rms_norm_eps: float
    max_position_embeddings: int
    hidden_act: str
    logit_scale: float
    soft_cap: float | None
    weight_bytes: int
    has_chat_template: bool

    @property
    def default_boundaries(self) -> tuple[int, ...]:
        """Aux boundaries [2, L//2, L-3]: after that many decoder layers; 0 is the embeddings."""
        return (2, self.num_layers // 2, self.num_layers - 3)


def target_source(folder: Path) -> Source:
    """The target as an input: config, tokenizer and template content, weights index, and per weight file
    its size and header digest. Renaming the folder or touching a file changes nothing."""
    _require_target(folder)
    parts: dict[str, object] = {}
    for name in _CONTENT_FILES:
        if (folder / name).is_file():
            parts[name] = file_digest(folder / name)
    for path in _weight_files(folder):
        parts[path.name] = [path.stat().st_size, bytes_digest(_header(path))]
    return Source(folder, value_digest(parts))


def read_facts(folder: Path) -> TargetFacts:
    """The facts of a checkpoint folder; EyasError for what is missing or of a kind that is not supported."""
    _require_target(folder)
    return _read_facts(folder.absolute())


@functools.lru_cache(maxsize=8)
def _read_facts(folder: Path) -> TargetFacts:
    config = _json(folder / "config.json")
    text = config.get("text_config", config)
    heads = _field(text, "num_attention_heads", folder)
    rope_theta, rope_scaling = rope_of(text)
    return TargetFacts(
        folder=folder,
        model_type=_field(config, "model_type", folder),
        hidden_size=_field(text, "hidden_size", folder),
        num_layers=_field(text, "num_hidden_layers", folder),
        num_heads=heads,
        num_kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        intermediate_size=_field(text, "intermediate_size", folder),
        vocab_size=_field(text, "vocab_size", folder),
        tokenizer_length=_tokenizer_length(folder),
        eos_ids=_eos_ids(folder, text),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        rms_norm_eps=text.get("rms_norm_eps", 1e-6),
        max_position_embeddings=_field(text, "max_position_embeddings", folder),
        hidden_act=text.get("hidden_act", "silu"),
        logit_scale=float(text.get("logit_scale") or 1.0 / text.get("logits_scaling", 1.0)),
        soft_cap=text.get("final_logit_softcapping"),
        weight_bytes=sum(path.stat().st_size for path in _weight_files(folder)),
        has_chat_template=_has_template(folder),
    )


def rope_of(fields: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """(base, scaling) of a config's rotary positions in the words of transformers 5, whatever words it uses itself.

    The scaling is None where positions are plain; else it holds rope_type, partial_rotary_factor where only a part of
    a head is turned, and original_max_position_embeddings wherever the config keeps it. Without `rope_type` an old
    `type` would be passed over in silence; `su` was longrope's name, and `mrope` turns text as the plain type does.
    """
    rope = {**(fields.get("rope_parameters") or fields.get("rope_scaling") or {})}
    theta = float(rope.pop("rope_theta", None) or fields.get("rope_theta") or 10000.0)
    kind = rope.pop("type", "default")
    kind = {"su": "longrope", "mrope": "default"}.get(kind, kind)
    scaling: dict[str, Any] = {"rope_type": kind, **rope}
    part = scaling.pop("partial_rotary_factor", fields.get("partial_rotary_factor")) or 1.0
    if scaling["rope_type"] == "default":
        scaling = {"rope_type": "default"}
    elif scaling["rope_type"] in _KEEP_ORIGINAL and fields.get("original_max_position_embeddings"):
        scaling["original_max_position_embeddings"] = fields["original_max_position_embeddings"]
    if part != 1.0:
        scaling["partial_rotary_factor"] = part
    return theta, None if scaling == {"rope_type": "default"} else scaling


def _require_target(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise EyasError(
            "the target is no checkpoint folder",
            file=folder,
            expected="a folder with config.json, tokenizer.json and *.safetensors",
            mend="set `target` to a local checkpoint folder, or to `demo`; nothing is fetched from a model hub",
        )
    if not _weight_files(folder):
        raise EyasError(
            "the target has no weights",
            file=folder,
            expected="*.safetensors",
            mend="convert the checkpoint to safetensors: pickled weights are never loaded",
        )


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _header(path: Path) -> bytes:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(length)


def _json(path: Path) -> dict[str, Any]:
    try:
        return orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise EyasError(
            "not valid JSON", file=path, found=str(error), mend="restore the target's file"
        ) from error


def _field(config: dict[str, Any], name: str, folder: Path) -> Any:
    if config.get(name) is None:
        raise EyasError(
            f"the target's config lacks `{name}`",
            file=folder / "config.json",
            mend="use a decoder-only text checkpoint",
        )
    return config[name]


def _tokenizer_length(folder: Path) -> int:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise EyasError(
            "the target has no tokenizer.json", file=folder, mend="save its tokenizer in the fast form"
        )
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _eos_ids(folder: Path, text: dict[str, Any]) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    given = _json(path).get("eos_token_id") if path.is_file() else None
    if given is None:
        given = text.get("eos_token_id")
    ids = [given] if isinstance(given, int) else list(given or [])
    if not ids:
        raise EyasError(
            "the target names no end token",
            file=folder,
            expected="eos_token_id",
            mend="add it to generation_config.json",
        )
    return tuple(sorted(set(ids)))


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and bool(_json(path).get("chat_template"))
