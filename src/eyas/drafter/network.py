"""The EAGLE-3 drafter: weights, names and the maths that does not depend on how attention is computed.

Shape suffixes: N slots (any packing), A aux boundaries, G target hidden, H draft hidden, Q query heads,
K key/value heads, D head dimension, R draft vocabulary, V target vocabulary.

Parameter names are those that SGLang and vLLM read, so that an export renames nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from eyas.core.errors import EyasError

from .config import DrafterConfig


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension; statistics in at least float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x_NH: Tensor) -> Tensor:
        return F.rms_norm(x_NH, (x_NH.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Projections of the draft layer; they read concat(norm(embed), norm(hidden)), 2H wide."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, x_NH: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x_NH)) * self.up_proj(x_NH))


class DraftLayer(nn.Module):
    """One Llama-type decoder layer without its attention kernel.

    `enter` makes the 2H-wide input and the residual stream; `queries` and `keys_values` the heads; `leave`
    finishes the layer from the attention's output, in its training_form (compiled, recomputed) where a gradient
    is wanted.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.training_form: Callable[[Tensor, Tensor], Tensor] | None = None

    def enter(self, embed_NH: Tensor, hidden_NH: Tensor) -> tuple[Tensor, Tensor]:
        """(input [N, 2H], residual [N, H]); the residual is un-normalised unless norm_before_residual."""
        normed_NH = self.hidden_norm(hidden_NH)
        input_N2H = torch.cat([self.input_layernorm(embed_NH), normed_NH], dim=-1)
        return input_N2H, normed_NH if self.config.norm_before_residual else hidden_NH

    def queries(self, input_N2H: Tensor) -> Tensor:
        """[N, Q, D], not yet rotated."""
        return self.self_attn.q_proj(input_N2H).unflatten(-1, (self.config.num_heads, self.config.head_dim))

    def keys_values(self, input_N2H: Tensor) -> tuple[Tensor, Tensor]:
        """([N, K, D], [N, K, D]), the keys not yet rotated."""
        heads = (self.config.num_kv_heads, self.config.head_dim)
        return (
            self.self_attn.k_proj(input_N2H).unflatten(-1, heads),
            self.self_attn.v_proj(input_N2H).unflatten(-1, heads),
        )

    def leave(self, residual_NH: Tensor, mixed_NQD: Tensor) -> Tensor:
        """The layer's pre-norm output [N, H] from the attention's output."""
        if self.training_form is not None and torch.is_grad_enabled():
            return self.training_form(residual_NH, mixed_NQD)
        return self.finish(residual_NH, mixed_NQD)

    def finish(self, residual_NH: Tensor, mixed_NQD: Tensor) -> Tensor:
        """`leave` in its plain form."""
        residual_NH = residual_NH + self.self_attn.o_proj(mixed_NQD.flatten(-2))
        return residual_NH + self.mlp(self.post_attention_layernorm(residual_NH))


class Drafter(nn.Module):
    """The drafter's weights. `embed_tokens` is the target's and frozen where the widths are equal.

    d2t [R] int64 holds offsets (target id - draft id), t2d [V] bool marks the draft vocabulary.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        width = config.num_aux * config.target_hidden_size
        if config.norm_before_fc:
            self.input_norm = RMSNorm(width, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_aux)
            )
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_tokens.weight.requires_grad_(config.has_own_embedding)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    def share_embedding(self, weight_VH: Tensor) -> None:
        """Use the target's embedding itself, not a copy; it is never trained."""
        assert not self.config.has_own_embedding
        assert weight_VH.shape == self.embed_tokens.weight.shape
        self.embed_tokens.weight = nn.Parameter(weight_VH, requires_grad=False)

    def set_vocabulary(self, target_ids_R: Tensor) -> None:
        """The draft vocabulary, as rising target ids."""
        assert bool((target_ids_R.diff() > 0).all()), "draft ids must rise with target ids"
        self.d2t.copy_(target_ids_R - torch.arange(len(target_ids_R)))
        self.t2d.zero_()
        self.t2d[target_ids_R] = True

    def embed(self, ids_N: Tensor) -> Tensor:
        """[N, H] in the drafter's own number type; the shared table stays in the target's."""
        return self.embed_tokens(ids_N).to(self.fc.weight.dtype)

    @property
    def target_ids_R(self) -> Tensor:
        """The target id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, aux_NAG: Tensor) -> Tensor:
        """g = fc(aux): [N, A*G] -> [N, H], with the norms that the configuration asks for. It begins the residual
        stream, so it keeps the weights' number type under autocast."""
        if self.config.fc_norm:
            parts = aux_NAG.split(self.config.target_hidden_size, dim=-1)
            aux_NAG = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        if self.config.norm_before_fc:
            aux_NAG = self.input_norm(aux_NAG)
        return self.fc(aux_NAG).to(self.fc.weight.dtype)

    def fed_back(self, output_NH: Tensor) -> Tensor:
        """What the next step takes as hidden: the pre-norm output, post-norm with norm_output."""
        return self.norm(output_NH) if self.config.norm_output else output_NH

    def logits(self, output_NH: Tensor) -> Tensor:
        """Draft logits [N, R] of a layer output; scale and soft cap as in the target's head."""
        return shaped_logits(
            self.lm_head(self.norm(output_NH)), self.config.logit_scale, self.config.soft_cap
        )

    def exported_state(self) -> dict[str, Tensor]:
        """Every tensor that an engine or a checkpoint needs; the shared embedding is left out."""
        state = {name: tensor.detach() for name, tensor in self.state_dict().items()}
        if not self.config.has_own_embedding:
            del state["embed_tokens.weight"]
        return state


def shaped_logits(raw: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    """What a head does after its matrix: cap * tanh(x / cap), then the scale (Gemma and Cohere heads)."""
    if soft_cap is not None:
        raw = soft_cap * torch.tanh(raw / soft_cap)
    return raw if scale == 1.0 else raw * scale


def load_drafter(folder: Path, config: DrafterConfig, embedding_VH: Tensor | None) -> Drafter:
    """A drafter from `model.safetensors` in `folder`. Unknown and missing names are both refused.

    embedding_VH: the target's, needed unless the drafter has its own.
    """
    drafter = Drafter(config)
    state = load_file(folder / "model.safetensors")
    missing, unknown = drafter.load_state_dict(state, strict=False)
    missing = [name for name in missing if name != "embed_tokens.weight" or config.has_own_embedding]
    if missing or unknown:
        raise EyasError(
            "the drafter's weights do not fit its configuration",
            file=folder / "model.safetensors",
            expected="exactly the names of the network",
            found=f"missing {missing}, unknown {list(unknown)}",
            mend="export the checkpoint again with `eyas export`",
        )
    if not config.has_own_embedding:
        assert embedding_VH is not None
        drafter.share_embedding(embedding_VH)
    return drafter
