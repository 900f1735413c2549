"""A tiny drafter, tiny rows of states and a tiny target on the disk, all drawn from a seed."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from eyas.core.manifest import Manifest, Source, measured
from eyas.core.rows import EXACT, GREEDY, TokenRow
from eyas.drafter.config import DrafterConfig
from eyas.drafter.loss import TeacherHead
from eyas.drafter.network import Drafter
from eyas.states.store import NO_TEACHER, StateRow, pack_shard

HIDDEN, AUX, VOCAB, DRAFT = 16, 3, 23, 11


def tiny_config(**changes: object) -> DrafterConfig:
    fields = {
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "intermediate_size": 20,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 4,
        "num_aux": AUX,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 16.0,
        "rope_scaling": None,
        "max_position_embeddings": 256,
    }
    return DrafterConfig(**{**fields, **changes})


def tiny_drafter(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: object) -> Drafter:
    """Every weight drawn, norms around 1, so that nothing hides behind a zero or a one."""
    generator = torch.Generator().manual_seed(seed)
    drafter = Drafter(tiny_config(**changes)).to(dtype)
    with torch.no_grad():
        for parameter in drafter.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=dtype)
            parameter.copy_(1 + 0.2 * drawn if parameter.dim() == 1 else 0.3 * drawn)
    ids = torch.randperm(VOCAB, generator=generator)[: drafter.config.draft_vocab_size]
    drafter.set_vocabulary(ids.sort().values)
    return drafter


def tiny_teacher(drafter: Drafter, seed: int = 1) -> tuple[TeacherHead, torch.Tensor]:
    """(the restricted head, the full head [V, G]) of the same scale and soft cap as the drafter's."""
    generator = torch.Generator().manual_seed(seed)
    dtype = drafter.fc.weight.dtype
    head = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=dtype)
    config = drafter.config
    return TeacherHead(head[drafter.target_ids_R], None, config.logit_scale, config.soft_cap), head


def tiny_row(mask: list[int], head: torch.Tensor, seed: int = 2, name: str = "row") -> StateRow:
    """A row of random ids and states under a given mask; its teacher is the head's own argmax."""
    generator = torch.Generator().manual_seed(seed)
    length, dtype = len(mask), head.dtype
    last = torch.randn(length, HIDDEN, generator=generator, dtype=dtype)
    label_next = torch.tensor([*mask[1:], 0]).bool()
    return StateRow(
        id=name,
        dataset="tiny",
        flags=[GREEDY, EXACT],
        input_ids_T=torch.randint(0, VOCAB, (length,), generator=generator),
        loss_mask_T=torch.tensor(mask).bool(),
        teacher_T=torch.where(label_next, (last @ head.T).argmax(-1), NO_TEACHER),
        aux_TAH=torch.randn(length, AUX * HIDDEN, generator=generator, dtype=dtype),
        last_TH=last,
    )


def write_extract(
    folder: Path, train: list[StateRow], held_out: list[StateRow], development: list[StateRow] | None = None
) -> Source:
    folder.mkdir(parents=True)
    outputs = []
    for prefix, rows in (("states", train), ("eval", held_out), ("dev", development or [])):
        if prefix == "dev" and not rows:
            continue
        name = f"{prefix}-00000.safetensors"
        tokens = [
            TokenRow(r.id, r.dataset, r.input_ids_T.tolist(), r.loss_mask_T.int().tolist(), r.flags)
            for r in rows
        ]
        shard = pack_shard(
            tokens,
            [r.aux_TAH.float() for r in rows],
            [r.last_TH.float() for r in rows],
            [r.teacher_T for r in rows],
        )
        (folder / name).write_bytes(shard)
        outputs.append(measured(folder, name, len(rows), sum(len(r) for r in rows)))
    actual = {"boundaries": [0, 1, 2]}
    counts = {"rows_in": 0, "rows_out": 0, "dropped": {}}
    Manifest("extract", 1, "tiny", "e" * 32, {}, {}, outputs, counts, {}, actual).write(folder)
    return Source(folder, "e" * 32)


def write_vocabulary(folder: Path, target_ids: torch.Tensor) -> Source:
    folder.mkdir(parents=True)
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[target_ids] = True
    tensors = {
        "target_ids": target_ids,
        "d2t": target_ids - torch.arange(len(target_ids)),
        "t2d": t2d,
        "counts": torch.zeros(VOCAB, dtype=torch.int64),
    }
    save_file(tensors, folder / "vocab.safetensors")
    counts = {"rows_in": 0, "rows_out": 0, "dropped": {}}
    outputs = [measured(folder, "vocab.safetensors")]
    Manifest("vocab", 1, "tiny", "v" * 32, {}, {}, outputs, counts, {}, {}).write(folder)
    return Source(folder, "v" * 32)


def write_target(folder: Path, seed: int = 5) -> Source:
    """A random two-layer Llama with a tokenizer that knows its ids; enough for what training reads."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM

    from eyas.core.contract import target_source

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(
        str(folder / "tokenizer.json")
    )
    return target_source(folder)


def train_inputs(folder: Path, num_rows: int = 12, num_development: int = 0) -> dict[str, Source]:
    """Everything that the train stage reads, tiny."""
    head = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3))
    masks = [[0] * (2 + i % 3) + [1] * (4 + i % 5) for i in range(num_rows)]
    rows = [tiny_row(mask, head, i, f"r{i}") for i, mask in enumerate(masks)]
    held_out = [tiny_row([0, 0, *[1] * 9], head, 100 + i, f"h{i}") for i in range(3)]
    development = [tiny_row([0, *[1] * 12], head, 200 + i, f"d{i}") for i in range(num_development)]
    return {
        "extract": write_extract(folder / "extract", rows, held_out, development),
        "vocab": write_vocabulary(folder / "vocab", torch.arange(1, VOCAB, 2)),
        "target": write_target(folder / "target"),
    }


class MemoryStore:
    """Rows as a StateStore gives them, in whatever number type they were made."""

    def __init__(self, rows: list[StateRow]) -> None:
        self.rows = rows
        self.lengths = [len(row) for row in rows]
        self.boundaries = [0, 1, 2]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> StateRow:
        return self.rows[index]

    def tokens(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        row = self.rows[index]
        return row.input_ids_T, row.loss_mask_T, row.teacher_T


def memory_store(head: torch.Tensor, num_rows: int = 16) -> MemoryStore:
    """Rows of different lengths, one of them without a label."""
    masks = [[0] * (2 + i % 3) + [1] * (i % 7 and 3 + i % 7) for i in range(num_rows)]
    return MemoryStore([tiny_row(mask, head, i, f"r{i}") for i, mask in enumerate(masks)])
