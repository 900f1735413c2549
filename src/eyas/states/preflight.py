"""The preflight: proof, on two prompts and before a byte is stored, that states are what they are called.

last: the target's head on it must give the target's own greedy token at every position; a state taken
before the final norm does not. boundary b: put in the place of layer b's input while the target reads
*other* tokens, it must lead to the same last state; a state of the layer before or after does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eyas.core.errors import FaultFound
from eyas.engines.hf import HfTarget

States = Callable[[Sequence[Sequence[int]], Sequence[int]], list[tuple[Tensor, Tensor]]]

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Largest relative difference of the last state that rounding explains."""


def preflight(
    target: HfTarget,
    boundaries: Sequence[int],
    prompts: Sequence[Sequence[int]],
    states: States | None = None,
) -> None:
    """Raise FaultFound if `states` (by default the target's own) gives anything but what it promises."""
    for prompt, (aux_TAH, last_TH) in zip(
        prompts, (states or target.states)(prompts, boundaries), strict=True
    ):
        _prove_last(target, prompt, last_TH)
        for boundary, state_TH in zip(boundaries, aux_TAH.chunk(len(boundaries), dim=-1), strict=True):
            _prove_boundary(target, prompt, boundary, state_TH, last_TH)


def _prove_last(target: HfTarget, prompt: Sequence[int], last_TH: Tensor) -> None:
    with torch.inference_mode():
        expected_T = target.model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0].argmax(-1)
        found_T = target.head(last_TH).argmax(-1)
    wrong = (expected_T != found_T).nonzero().flatten().tolist()
    if wrong:
        raise FaultFound(
            "the last hidden state is not what the target's head reads",
            record=f"position {wrong[0]} of {len(prompt)}",
            expected=f"the target's own greedy token {int(expected_T[wrong[0]])}",
            found=f"token {int(found_T[wrong[0]])}; {len(wrong)} positions differ",
            mend="last must be taken after the target's final norm",
        )


def _prove_boundary(
    target: HfTarget, prompt: Sequence[int], boundary: int, state_TH: Tensor, last_TH: Tensor
) -> None:
    place = target.layers[boundary] if boundary < len(target.layers) else target.decoder.norm

    def put(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if arguments:
            return (state_TH[None], *arguments[1:]), keywords
        return arguments, {**keywords, "hidden_states": state_TH[None]}

    handle = place.register_forward_pre_hook(put, with_kwargs=True)
    try:
        with torch.inference_mode():
            other = torch.tensor([prompt]).flip(1)
            reached_TH = target.decoder(input_ids=other, use_cache=False).last_hidden_state[0]
    finally:
        handle.remove()
    difference = float((reached_TH - last_TH).norm() / last_TH.norm())
    if not difference <= _TOLERANCE[last_TH.dtype]:
        raise FaultFound(
            f"the state at boundary {boundary} is not the input of layer {boundary}",
            expected=f"the same last state within {_TOLERANCE[last_TH.dtype]} when the target goes on from it",
            found=f"a relative difference of {difference:.3g}",
            mend="boundaries count decoder layers from the embeddings (0): check for an offset of one",
        )
