"""Engine `hf`: the target as a transformers model in this process."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from eyas.core.contract import read_facts
from eyas.core.errors import EyasError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def use_threads(threads: int) -> None:
    """Fix the threads of this process, and keep freed memory instead of giving it back page by page."""
    torch.set_num_threads(threads)
    m_trim_threshold, m_mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


class HfTarget:
    """A loaded target. Everything runs without gradients and without dropout.

    model: the whole model; decoder: its stack without the head; layers: the decoder layers;
    facts: TargetFacts.
    """

    def __init__(self, folder: Path, dtype: str = "float32", threads: int = 1) -> None:
        use_threads(threads)
        logging.disable_progress_bar()  # progress is the stage's to show
        self.facts = read_facts(folder)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
        ).eval()
        self.model.requires_grad_(False)
        self.decoder: Any = self.model.get_decoder()
        if not hasattr(self.decoder, "layers") or not hasattr(self.decoder, "norm"):
            raise EyasError(
                "the target's layers cannot be found",
                file=folder,
                expected="a decoder with `layers` and a final `norm`",
                found=type(self.decoder).__name__,
                mend="use a Llama-type decoder",
            )
        self.layers: nn.ModuleList = self.decoder.layers

    @property
    def head(self) -> nn.Module:
        """The vocabulary head: [N, H] last hidden -> [N, V] raw logits, before scale and soft cap (neither
        moves an argmax)."""
        return self.model.get_output_embeddings()

    def states(self, rows: Sequence[Sequence[int]], boundaries: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """(aux [T, A*H], last [T, H]) of each row, from one right-padded prefill without the head.

        aux holds the residual stream at each boundary (b = the input of layer b, L = the output of the
        last layer), last is after the final norm. Padding never reaches a real token: attention is causal.
        """
        longest = max(len(row) for row in rows)
        ids_BT = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids_BT[i, : len(row)] = torch.tensor(row)
        with torch.inference_mode(), self.captured(boundaries) as captured:
            last_BTH = self.decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
            aux_BTAH = torch.cat([captured[b] for b in boundaries], dim=-1)
        return [
            (aux_BTAH[i, : len(row)].clone(), last_BTH[i, : len(row)].clone()) for i, row in enumerate(rows)
        ]

    @contextlib.contextmanager
    def captured(self, boundaries: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """While open, each forward of the decoder leaves the residual stream [B, T, H] at each boundary here."""
        found: dict[int, Tensor] = {}

        def keep(boundary: int) -> Any:
            def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
                found[boundary] = arguments[0] if arguments else keywords["hidden_states"]

            return hook

        places = [self.layers[b] if b < len(self.layers) else self.decoder.norm for b in boundaries]
        handles = [
            place.register_forward_pre_hook(keep(b), with_kwargs=True)
            for b, place in zip(boundaries, places, strict=True)
        ]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
