"""What a term of the loss is, and what it weighs: one small function for each formula, with its source.

p is the teacher's distribution over the draft vocabulary and q the drafter's, l the drafter's logits. An
objective takes the cross-entropy [c], q [c, R] (overwritten) and p [c, R] of c terms and gives the loss [c]
and its gradient with respect to l [c, R].

Shapes: c terms of a chunk, R draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .options import TrainOptions

ObjectiveName = Literal["cross_entropy", "lk_alpha", "lk_lambda"]
Preset = Literal["eyas", "eagle", "specforge", "automodel"]
Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class LossSpec:
    """Everything that the loss of a term and its weight depend on. chunk: teacher positions whose logits
    exist at once; with K steps that is up to (K + 1) * chunk rows of R logits."""

    objective: ObjectiveName = "cross_entropy"
    preset: Preset = "eyas"
    step_decay: float = 0.8
    lk_scale: float = 1.0
    lk_decay: float = 3.0
    chunk: int = 128

    @classmethod
    def of(cls, options: TrainOptions) -> LossSpec:
        return cls(
            objective=options.objective,
            preset=options.preset,
            step_decay=options.step_decay,
            lk_scale=options.lk_scale,
            lk_decay=options.lk_decay,
            chunk=options.head_chunk,
        )

    def function(self) -> Objective:
        if self.objective == "lk_alpha":
            return lk_alpha
        if self.objective == "lk_lambda":
            return lambda ce_c, q_cR, p_cR: lk_lambda(ce_c, q_cR, p_cR, self.lk_scale, self.lk_decay)
        return soft_cross_entropy

    def shares(self, term_counts: Sequence[int], num_tokens: int) -> list[float]:
        """The weight of one term of each step; counts and tokens are those of the whole optimiser step, over
        all ranks and all accumulated parts."""
        if self.preset == "automodel":
            return weighted_mean_shares(term_counts, self.step_decay)
        if self.preset in ("eagle", "specforge"):
            return all_position_shares(term_counts, self.step_decay, num_tokens)
        return term_shares(term_counts, self.step_decay)


def idle_settings(options: TrainOptions) -> list[str]:
    """Settings that the chosen objective or preset does not read, though they are not at their defaults."""
    if options.objective == "lk_lambda":
        return []
    plain = LossSpec()
    return [name for name in ("lk_scale", "lk_decay") if getattr(options, name) != getattr(plain, name)]


def read_logits(logits_cR: Tensor, p_cR: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(argmax [c], cross-entropy -sum_v p log q [c], q [c, R]).

    log sum exp l = max l - log max q: one exponential of each logit serves both.
    """
    best_c, drafted_c = logits_cR.max(-1)
    q_cR = logits_cR.softmax(-1)
    lse_c = best_c - q_cR.gather(-1, drafted_c.unsqueeze(-1)).squeeze(-1).log()
    dot_c = torch.bmm(p_cR.unsqueeze(1), logits_cR.unsqueeze(2)).flatten()
    return drafted_c, lse_c - dot_c, q_cR


def soft_cross_entropy(ce_c: Tensor, q_cR: Tensor, p_cR: Tensor) -> tuple[Tensor, Tensor]:
    """-sum_v p log q, gradient q - p: forward KL up to the teacher's entropy.

    Source: SafeAILab/EAGLE, traineagle3/cnets.py (plogp), and every trainer after it.
    """
    return ce_c, q_cR.sub_(p_cR)


def lk_alpha(ce_c: Tensor, q_cR: Tensor, p_cR: Tensor) -> tuple[Tensor, Tensor]:
    """-log alpha, alpha = sum_v min(p, q), the chance that a draft sampled from q is accepted.

    d alpha / d l_u = q_u (m_u - s), m_u = 1{q_u < p_u}, s = sum_v m_v q_v. s <= alpha and m_u q_u <= alpha,
    so nothing overflows however small alpha is. Source: LK losses, as sgl-project/SpecForge,
    specforge/core/lk_loss.py has them, but for the mean: that file takes the log of the batch's mean alpha,
    which depends on how the batch is split; here each term has its own log.
    """
    alpha_c, slope_cR = _acceptance(q_cR, p_cR)
    alpha_c = alpha_c.clamp(min=torch.finfo(alpha_c.dtype).tiny)
    return -alpha_c.log(), slope_cR.div_(-alpha_c.unsqueeze(-1))


def lk_lambda(ce_c: Tensor, q_cR: Tensor, p_cR: Tensor, scale: float, decay: float) -> tuple[Tensor, Tensor]:
    """w * cross-entropy + (1 - w) * (1 - alpha), w = scale * exp(-decay * alpha), without gradient through w.

    Source: specforge/core/lk_loss.py, `lambda`; alpha is the term's own here (see lk_alpha).
    """
    error_cR = q_cR - p_cR
    alpha_c, slope_cR = _acceptance(q_cR, p_cR)
    w_c = scale * (-decay * alpha_c).exp()
    w_c1 = w_c.unsqueeze(-1)
    return w_c * ce_c + (1 - w_c) * (1 - alpha_c), error_cR.mul_(w_c1).sub_(slope_cR.mul_(1 - w_c1))


def _acceptance(q_cR: Tensor, p_cR: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha [c], d alpha / d l [c, R]); q_cR is overwritten."""
    alpha_c = torch.minimum(q_cR, p_cR).sum(-1)
    below_cR = (q_cR < p_cR).to(q_cR.dtype)
    s_c1 = torch.linalg.vecdot(q_cR, below_cR).unsqueeze(-1)
    return alpha_c, q_cR.mul_(below_cR.sub_(s_c1))


def term_shares(term_counts: Sequence[int], decay: float) -> list[float]:
    """decay^k / N_k; 0 where a step has no term. Source: docs/design.md section 5."""
    return [decay**k / count if count else 0.0 for k, count in enumerate(term_counts)]


def all_position_shares(term_counts: Sequence[int], decay: float, num_tokens: int) -> list[float]:
    """decay^k / all positions, masked ones included.

    Source: traineagle3/cnets.py and specforge/core/eagle3.py, `-sum(position_mask * plogp, 2).mean()`, summed
    with 0.8 ** i. They count padding too; packs have none.
    """
    return [decay**k / num_tokens if count else 0.0 for k, count in enumerate(term_counts)]


def weighted_mean_shares(term_counts: Sequence[int], decay: float) -> list[float]:
    """decay^k / sum_j decay^j / N_k.

    Source: NVIDIA-NeMo/Automodel, components/speculative/eagle/core.py: a mean over valid positions per step,
    divided by the sum of the step weights.
    """
    total = sum(decay**k for k in range(len(term_counts)))
    return [share / total for share in term_shares(term_counts, decay)]
