"""The loss over the terms of a batch, and what the log says about it.

Logits of teacher and draft exist for one chunk of teacher positions at a time, forward and backward: the
gradient with respect to the head's input and weight is taken in the forward pass, where the logits are
at hand, and only [terms, H] and [R, H] are kept.

Shapes: C terms, c terms of a chunk, P teacher positions, S slots of a step, R draft vocabulary, G target
hidden, H draft hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .batch import Batch
from .network import Drafter, shaped_logits
from .objectives import LossSpec, read_logits


@dataclass(frozen=True)
class TeacherHead:
    """The target's head, cut to the rows of the draft vocabulary, with all that it does to its logits."""

    rows_RG: Tensor
    bias_R: Tensor | None
    scale: float
    soft_cap: float | None

    def distribution(self, last_PG: Tensor) -> Tensor:
        """The teacher [P, R]: the target's next-token distribution, restricted and normalised again."""
        raw = torch.nn.functional.linear(last_PG, self.rows_RG, self.bias_R)
        return shaped_logits(raw, self.scale, self.soft_cap).softmax(-1)


@dataclass(frozen=True)
class Terms:
    """The terms of a batch, chunk by chunk. places: of a term's slot among the S_0, S_1, ... slots put one
    after the other. steps: k. teachers: its teacher position. bounds: (first term, first position) of each chunk."""

    places_C: Tensor
    steps_C: Tensor
    teachers_C: Tensor
    bounds: list[tuple[int, int]]


def list_terms(batch: Batch, chunk: int) -> Terms:
    places, steps, teachers = [], [], []
    offset = 0
    for k, step in enumerate(batch.steps):
        at_C = torch.nonzero(step.teachers_S >= 0).flatten()
        places.append(at_C + offset)
        steps.append(torch.full_like(at_C, k))
        teachers.append(step.teachers_S[at_C])
        offset += len(step)
    places_C, steps_C, teachers_C = torch.cat(places), torch.cat(steps), torch.cat(teachers)
    order_C = torch.argsort(teachers_C // chunk, stable=True)
    firsts = [*range(0, len(batch.last_PG), chunk), len(batch.last_PG)]
    starts = torch.searchsorted(teachers_C[order_C] // chunk, torch.arange(len(firsts))).tolist()
    return Terms(
        places_C[order_C], steps_C[order_C], teachers_C[order_C], list(zip(starts, firsts, strict=True))
    )


class _HeadLoss(torch.autograd.Function):
    """sum of weight * objective over the terms; also, without gradient, each term's cross-entropy and drafted
    id [C]. The logits are those of the chunk at hand; nothing of them outlives it."""

    @staticmethod
    def forward(
        ctx: Any,
        normed_CH: Tensor,
        head_RH: Tensor,
        weight_C: Tensor,
        batch: Batch,
        terms: Terms,
        teacher: TeacherHead,
        spec: LossSpec,
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_input, needs_head = ctx.needs_input_grad[:2]
        loss_C, ce_C = torch.empty_like(weight_C), torch.empty_like(weight_C)
        drafted_C = torch.empty_like(terms.places_C)
        grad_CH = torch.empty_like(normed_CH) if needs_input else None
        grad_RH = torch.zeros_like(head_RH) if needs_head else None
        objective = spec.function()
        for (first, first_p), (last, last_p) in zip(terms.bounds[:-1], terms.bounds[1:], strict=True):
            chosen = slice(first, last)
            p_PR = teacher.distribution(batch.last_PG[first_p:last_p])
            p_cR = p_PR.index_select(0, terms.teachers_C[chosen] - first_p)
            raw_cR = torch.nn.functional.linear(normed_CH[chosen], head_RH)
            logits_cR = shaped_logits(raw_cR, teacher.scale, teacher.soft_cap)
            drafted_C[chosen], ce_C[chosen], q_cR = read_logits(logits_cR, p_cR)
            loss_C[chosen], grad_cR = objective(ce_C[chosen], q_cR, p_cR)
            slope = _head_slope(logits_cR, teacher)
            if slope is not None:
                grad_cR = grad_cR.mul_(slope)
            weight_c1 = weight_C[chosen].unsqueeze(-1)
            if grad_CH is not None:
                torch.mul(grad_cR @ head_RH, weight_c1, out=grad_CH[chosen])
            if grad_RH is not None:
                grad_RH.addmm_(grad_cR.T, normed_CH[chosen] * weight_c1)
        ctx.save_for_backward(grad_CH, grad_RH)
        ctx.mark_non_differentiable(ce_C, drafted_C)
        return loss_C @ weight_C, ce_C, drafted_C

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        grad_CH, grad_RH = ctx.saved_tensors
        scaled = [None if grad is None else grad * upstream[0] for grad in (grad_CH, grad_RH)]
        return scaled[0], scaled[1], None, None, None, None, None


def _head_slope(logits_cR: Tensor, teacher: TeacherHead) -> Tensor | float | None:
    """d logits / d raw, from the logits: scale, times 1 - tanh^2 under a soft cap; None where it is 1."""
    if teacher.soft_cap is None:
        return None if teacher.scale == 1.0 else teacher.scale
    return teacher.scale * (1.0 - (logits_cR / (teacher.scale * teacher.soft_cap)).square())


@dataclass(frozen=True)
class BatchLoss:
    """loss: the scalar to differentiate. cross_entropy: its sum over C_k for each step (divide by N_k), whatever
    the objective. hits: for each step, [S_k] bool, the draft is the target's own choice; False where the slot
    has no term."""

    loss: Tensor
    cross_entropy: list[float]
    hits: list[Tensor]


def batch_loss(
    drafter: Drafter,
    outputs: Sequence[Tensor],
    batch: Batch,
    teacher: TeacherHead,
    spec: LossSpec,
    term_counts: Sequence[int],
    num_tokens: int = 0,
) -> BatchLoss:
    """sum_k share_k * sum over C_k of the objective.

    outputs: of `unroll`. term_counts, num_tokens: N_k and tokens of the whole optimiser step, of which this
    batch may be a part (the tokens are read by the presets that divide by all positions); a step with N_k = 0
    adds nothing.
    """
    terms = list_terms(batch, spec.chunk)
    like = batch.last_PG
    shares = like.new_tensor(spec.shares(term_counts, num_tokens))
    normed_CH = drafter.norm(torch.cat(list(outputs)).index_select(0, terms.places_C))
    loss, ce_C, drafted_C = _HeadLoss.apply(
        normed_CH, drafter.lm_head.weight, shares[terms.steps_C], batch, terms, teacher, spec
    )
    sums = ce_C.new_zeros(len(term_counts)).index_add_(0, terms.steps_C, ce_C)
    right_P = torch.searchsorted(drafter.target_ids_R, batch.argmax_P)
    hits = torch.zeros(sum(batch.slot_counts), dtype=torch.bool, device=like.device)
    hits[terms.places_C] = drafted_C == right_P[terms.teachers_C]
    return BatchLoss(loss, sums.tolist(), list(hits.split(batch.slot_counts)))
