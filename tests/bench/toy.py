"""A toy target on the disk with a tokenizer of its own, its greedy texts, and drafters for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from eyas.bench.plain import decode_plainly
from eyas.bench.random_drafter import random_drafter
from eyas.core.contract import read_facts
from eyas.core.rows import EXACT, GREEDY, TokenRow
from eyas.drafter.batch import make_batch
from eyas.drafter.config import DrafterConfig
from eyas.drafter.init import copy_head, init_from_target
from eyas.drafter.network import Drafter
from eyas.drafter.rope import Rotary
from eyas.drafter.target_weights import TargetWeights
from eyas.drafter.unroll import unroll
from eyas.engines.hf import HfTarget
from eyas.states.store import StateRow

VOCAB, LAYERS, END = 96, 4, 5
BOUNDARIES = (1, 2, 3)
DRAFT_IDS = torch.tensor([i for i in range(VOCAB) if i % 4 != 3])
"""Three ids of four, so that offsets differ and some labels are outside."""


def write_target(folder: Path, seed: int = 0, **changes: object) -> Path:
    """A random Llama whose greedy texts wander instead of repeating one token."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    fields = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "initializer_range": 0.3,
        "eos_token_id": END,
        "bos_token_id": 1,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**fields, **changes}))
    model.generation_config = GenerationConfig(eos_token_id=END, bos_token_id=1)
    model.save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def prompts(number: int, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (number,), generator=generator).tolist()
    return [torch.randint(6, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def greedy_row(target: HfTarget, prompt: list[int], tokens: int, name: str, dataset: str = "toy") -> TokenRow:
    """The target's own single-stream greedy text as a token row."""
    answer = decode_plainly(target, prompt, tokens).tokens
    return TokenRow(name, dataset, prompt + answer, [0] * len(prompt) + [1] * len(answer), [GREEDY, EXACT])


def with_states(target: HfTarget, row: TokenRow) -> StateRow:
    aux, last = target.states([row.input_ids], BOUNDARIES)[0]
    mask = torch.tensor(row.loss_mask, dtype=torch.bool)
    label_next = torch.cat([mask[1:], torch.zeros(1, dtype=torch.bool)])
    teacher = torch.where(label_next, target.head(last).argmax(-1), -1)
    return StateRow(row.id, row.dataset, row.flags, torch.tensor(row.input_ids), mask, teacher, aux, last)


def toy_config(folder: Path, **changes: object) -> DrafterConfig:
    return DrafterConfig.like_target(read_facts(folder), len(BOUNDARIES), len(DRAFT_IDS), **changes)


def chance_drafter(folder: Path, seed: int = 0, **changes: object) -> Drafter:
    config = toy_config(folder, **changes)
    return random_drafter(config, DRAFT_IDS, TargetWeights(folder).embedding(), seed)


def good_drafter(folder: Path, rows: list[StateRow], steps: int = 150) -> Drafter:
    """A drafter that has learned the rows by heart, as far as its vocabulary goes."""
    weights = TargetWeights(folder)
    drafter = Drafter(toy_config(folder))
    drafter.share_embedding(weights.embedding())
    drafter.set_vocabulary(DRAFT_IDS)
    init_from_target(drafter, weights, LAYERS - 1, seed=0)
    copy_head(drafter, weights.head()[DRAFT_IDS])
    batch, rotary = make_batch(rows, drafter.t2d, 3), Rotary(drafter.config)
    place = torch.full((VOCAB,), -100)
    place[DRAFT_IDS] = torch.arange(len(DRAFT_IDS))  # cross_entropy passes over -100, labels outside
    optimizer = torch.optim.Adam([p for p in drafter.parameters() if p.requires_grad], lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for output_SH, step in zip(unroll(drafter, rotary, batch), batch.steps, strict=True):
            loss = loss + cross_entropy(drafter.logits(output_SH), place[step.labels_S])
        loss.backward()
        optimizer.step()
    return drafter.requires_grad_(False).eval()


def without_gradients(row: StateRow) -> StateRow:
    """Tensors made under inference mode cannot enter autograd; clones can."""
    changes: dict[str, Tensor] = {
        name: getattr(row, name).clone() for name in ("aux_TAH", "last_TH", "teacher_T")
    }
    return dataclasses.replace(row, **changes)
