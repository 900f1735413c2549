"""The shape and the conventions of a drafter."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eyas.core.contract import TargetFacts
from eyas.core.errors import EyasError
from eyas.core.files import write_whole

from .options import NetworkOptions


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """One Llama-type decoder layer behind `fc`, with a reduced or full draft vocabulary.

    num_aux boundaries of width target_hidden_size are fused to hidden_size. vocab_size is the rows of
    the target's head; draft_vocab_size <= vocab_size. Flags as vLLM reads them: norm_before_residual
    (the residual stream is the normed hidden), norm_before_fc (one RMSNorm over the concatenated aux),
    fc_norm (one RMSNorm per aux boundary, EAGLE-3.1), norm_output (the post-norm state is fed back,
    EAGLE-3.1). logit_scale and soft_cap are those of the target's head.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_aux: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    hidden_act: str = "silu"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        assert 0 < self.draft_vocab_size <= self.vocab_size
        assert self.num_heads % self.num_kv_heads == 0
        assert self.head_dim % 2 == 0

    @property
    def has_own_embedding(self) -> bool:
        """A drafter of another width than the target cannot share the target's embedding."""
        return self.hidden_size != self.target_hidden_size

    @property
    def num_parameters(self) -> int:
        """Weights of the drafter's file: fc, layer, norms and head, and the embedding if it is its own."""
        hidden, heads = self.hidden_size, self.num_heads * self.head_dim
        keys = self.num_kv_heads * self.head_dim
        fused = self.num_aux * self.target_hidden_size
        attention = 2 * hidden * (heads + 2 * keys) + heads * hidden
        mlp = 3 * hidden * self.intermediate_size
        norms = 4 * hidden + fused * (self.norm_before_fc + self.fc_norm)
        embedding = self.vocab_size * hidden if self.has_own_embedding else 0
        return fused * hidden + attention + mlp + norms + self.draft_vocab_size * hidden + embedding

    @classmethod
    def like_target(
        cls, facts: TargetFacts, num_aux: int, draft_vocab_size: int, **changes: Any
    ) -> DrafterConfig:
        """The usual drafter: every width, head and position setting that of the target."""
        fields: dict[str, Any] = {
            "hidden_size": facts.hidden_size,
            "target_hidden_size": facts.hidden_size,
            "intermediate_size": facts.intermediate_size,
            "num_heads": facts.num_heads,
            "num_kv_heads": facts.num_kv_heads,
            "head_dim": facts.head_dim,
            "num_aux": num_aux,
            "vocab_size": facts.vocab_size,
            "draft_vocab_size": draft_vocab_size,
            "rms_norm_eps": facts.rms_norm_eps,
            "rope_theta": facts.rope_theta,
            "rope_scaling": facts.rope_scaling,
            "max_position_embeddings": facts.max_position_embeddings,
            "hidden_act": facts.hidden_act,
            "logit_scale": facts.logit_scale,
            "soft_cap": facts.soft_cap,
        }
        return cls(**{**fields, **changes})

    def write(self, path: Path) -> None:
        write_whole(path, orjson.dumps(dataclasses.asdict(self), option=orjson.OPT_INDENT_2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> DrafterConfig:
        try:
            return cls(**orjson.loads(path.read_bytes()))
        except (orjson.JSONDecodeError, TypeError, FileNotFoundError) as error:
            raise EyasError(
                "this is no drafter configuration of Eyas", file=path, found=str(error)
            ) from error


def drafter_config(
    network: NetworkOptions, facts: TargetFacts, num_aux: int, draft_vocab_size: int
) -> DrafterConfig:
    """The target's shape with what the options change of it; EyasError where that is no shape."""
    changes = {name: value for name, value in dataclasses.asdict(network).items() if value is not None}
    heads, keys = network.num_heads or facts.num_heads, network.num_kv_heads or facts.num_kv_heads
    if heads % keys:
        raise EyasError(
            "the drafter's query heads are no multiple of its key heads",
            expected=f"a multiple of {keys}",
            found=heads,
            mend="set training.network.num_heads and num_kv_heads together",
        )
    return DrafterConfig.like_target(facts, num_aux, draft_vocab_size, **changes)
