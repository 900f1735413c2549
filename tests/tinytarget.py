"""A tiny target with a tokenizer and a chat template of its own, made in the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

START, END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BYTES = 256
START_ID, END_ID = BYTES, BYTES + 1
TOKENS = BYTES + 2
HEAD_ROWS = TOKENS + 6
"""More rows than tokens, as real heads have."""


def write_target(
    folder: Path, *, layers: int = 8, template: str | None = TEMPLATE, seed: int = 0, **changes: Any
) -> Path:
    """A random Llama, hidden 32, over bytes; its greedy texts wander and hardly ever end."""
    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": HEAD_ROWS,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": START_ID,
        "eos_token_id": END_ID,
        "tie_word_embeddings": True,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**fields, **changes}))
    model.generation_config = GenerationConfig(bos_token_id=START_ID, eos_token_id=END_ID)
    model.save_pretrained(folder)
    write_tokenizer(folder, template)
    return folder


def write_tokenizer(folder: Path, template: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(START, special=True), AddedToken(END, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": START, "eos_token": END}
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def prompts(number: int, word: str = "say") -> list[dict[str, Any]]:
    """OpenAI records of different lengths."""
    return [
        {
            "id": f"{word}-{i}",
            "messages": [{"role": "user", "content": f"{word} " + "ab " * (i % 5) + str(i)}],
        }
        for i in range(number)
    ]


def write_recipe(folder: Path, target: Path, **sections: Any) -> Path:
    """A recipe of two training datasets and one held out, small in every way."""
    write_jsonl(folder / "one.jsonl", prompts(7, "one"))
    write_jsonl(folder / "two.jsonl", prompts(6, "two"))
    write_jsonl(folder / "held.jsonl", prompts(4, "held"))
    recipe: dict[str, Any] = {
        "name": "tiny",
        "target": str(target),
        "datasets": [
            {"name": "one", "path": "one.jsonl", "cap": 6},
            {"name": "two", "path": "two.jsonl"},
            {"name": "held", "path": "held.jsonl", "role": "heldout"},
        ],
        "generation": {"max_new_tokens": 16, "batch_rows": 5, "workers": 1},
        "states": {"shard_tokens": 256, "workers": 1},
        "vocabulary": {"size": 128},
        "training": {
            "epochs": 1,
            "tokens_per_step": 96,
            "warmup_steps": 2,
            "threads": 1,
            "checkpoint_steps": 2,
        },
        "bench": {"prompts": 2, "max_new_tokens": 10, "draft_tokens": [1, 2, 3], "workers": 1},
    }
    for name, section in sections.items():
        recipe[name] = (
            {**recipe[name], **section} if isinstance(section, dict) and name in recipe else section
        )
    path = folder / "recipe.yaml"
    path.write_bytes(orjson.dumps(recipe))  # JSON is YAML
    return path
