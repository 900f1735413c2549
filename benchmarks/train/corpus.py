"""The benchmark's inputs: a random Llama, its states of random conversations, the full vocabulary.

Run as `python corpus.py FOLDER SHARE LENGTH...`: SHARE of each row is answer, the rows have the lengths
given. It writes FOLDER/target, FOLDER/extract and FOLDER/vocab in the form that the train stage reads.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

from eyas.core.manifest import Manifest, measured
from eyas.core.rows import TokenRow
from eyas.states.store import NO_TEACHER, pack_shard

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP, VOCAB = 256, 8, 4, 2, 688, 4096
BOUNDARIES = [2, LAYERS // 2, LAYERS - 3]
_COUNTS = {"rows_in": 0, "rows_out": 0, "dropped": {}}


def target_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
    )


def write_target(folder: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(target_config()).eval()
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.save(str(folder / "tokenizer.json"))
    return model


@torch.inference_mode()
def states(model: LlamaForCausalLM, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(aux [T, 3H], last [T, H], argmax [T]) of one row; the argmax where the next token is a label."""
    out = model.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    aux = torch.cat([out.hidden_states[b][0] for b in BOUNDARIES], dim=-1)
    last = out.last_hidden_state[0]
    argmax = torch.cat([model.lm_head(part).argmax(-1) for part in last.split(512)])
    return aux.bfloat16(), last.bfloat16(), argmax


def write_shard(
    folder: Path, prefix: str, model: LlamaForCausalLM, lengths: list[int], share: float, seed: int
) -> tuple[str, int, int]:
    generator = torch.Generator().manual_seed(seed)
    rows, aux, last, teacher = [], [], [], []
    for number, length in enumerate(lengths):
        ids = torch.randint(2, VOCAB, (length,), generator=generator).tolist()
        prompt = round(length * (1 - share))
        mask = [0] * prompt + [1] * (length - prompt)
        rows.append(TokenRow(f"{prefix}{number}", "random", ids, mask, []))
        a, h, argmax = states(model, ids)
        next_is_label = torch.tensor([*mask[1:], 0]).bool()
        aux.append(a)
        last.append(h)
        teacher.append(torch.where(next_is_label, argmax, NO_TEACHER))
    name = f"{prefix}-00000.safetensors"
    (folder / name).write_bytes(pack_shard(rows, aux, last, teacher))
    return name, len(rows), sum(lengths)


def write(folder: Path, share: float, lengths: list[int]) -> None:
    extract, vocab = folder / "extract", folder / "vocab"
    extract.mkdir(parents=True)
    vocab.mkdir()
    model = write_target(folder / "target")
    shards = [
        write_shard(extract, "states", model, lengths, share, seed=1),
        write_shard(extract, "eval", model, [64], 0.5, seed=2),
    ]
    outputs = [measured(extract, name, rows, tokens) for name, rows, tokens in shards]
    actual = {"boundaries": BOUNDARIES}
    Manifest("extract", 1, "bench", "e" * 32, {}, {}, outputs, _COUNTS, {}, actual).write(extract)
    ids = torch.arange(VOCAB)
    tensors = {
        "target_ids": ids,
        "d2t": torch.zeros_like(ids),
        "t2d": torch.ones(VOCAB, dtype=torch.bool),
        "counts": torch.zeros_like(ids),
    }
    save_file(tensors, vocab / "vocab.safetensors")
    outputs = [measured(vocab, "vocab.safetensors")]
    Manifest("vocab", 1, "bench", "v" * 32, {}, {}, outputs, _COUNTS, {}, {}).write(vocab)


if __name__ == "__main__":
    write(Path(sys.argv[1]), float(sys.argv[2]), [int(length) for length in sys.argv[3:]])
