"""The units of extract: which rows of the corpus a shard holds, and how one is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eyas.core.errors import FaultFound
from eyas.core.files import read_lines, write_whole
from eyas.core.rows import TokenRow, parse_row
from eyas.engines.hf import HfTarget

from .codecs import encode
from .options import ExtractOptions
from .preflight import preflight
from .store import NO_TEACHER, SPLITS, pack_shard

_HEAD_CHUNK = 256


@dataclass(frozen=True)
class Shard:
    """One unit: lines `first`.. of a corpus file. prompts are those of the preflight."""

    unit: str
    file: str
    corpus: Path
    offset: int
    lines: int
    tokens: int
    codec: str
    boundaries: tuple[int, ...]
    batch_tokens: int
    prompts: tuple[tuple[int, ...], ...]


_target: HfTarget | None = None
_proven = False


def load_target(folder: str, dtype: str, threads: int) -> None:
    """Set up this process: its target, not yet proven."""
    global _target, _proven
    _target, _proven = HfTarget(Path(folder), dtype, threads), False


def extract_shard(task: tuple[Shard, str]) -> None:
    """The unit's function: make one shard in the artefact's folder. The process' first one is preceded
    by the preflight."""
    global _proven
    shard, folder = task
    assert _target is not None
    if not _proven:
        preflight(_target, shard.boundaries, shard.prompts)
        _proven = True
    rows = _read(shard)
    aux, last = _states(_target, rows, shard)
    teacher = [_teacher(_target, row, h_TH) for row, h_TH in zip(rows, last, strict=True)]
    data = pack_shard(
        rows, [encode(a, shard.codec) for a in aux], [encode(h, shard.codec) for h in last], teacher
    )
    write_whole(Path(folder) / shard.file, data)


def plan_shards(
    corpus: Path,
    split: str,
    options: ExtractOptions,
    boundaries: tuple[int, ...],
    prompts: Sequence[Sequence[int]],
) -> list[Shard]:
    """Consecutive rows, a shard closed when it holds shard_tokens; a function of corpus and options."""
    codec = options.codec if split == "train" else options.dtype
    shards: list[Shard] = []
    offset = start = lines = tokens = 0

    def close() -> None:
        number = f"{SPLITS[split]}-{len(shards):05d}"
        shards.append(
            Shard(
                unit=number,
                file=f"{number}.safetensors",
                corpus=corpus,
                offset=start,
                lines=lines,
                tokens=tokens,
                codec=codec,
                boundaries=boundaries,
                batch_tokens=options.batch_tokens,
                prompts=tuple(tuple(prompt) for prompt in prompts),
            )
        )

    with open(corpus, "rb") as file:
        for number, line in enumerate(file, 1):
            offset += len(line)
            tokens += len(parse_row(line, corpus, number).input_ids)
            lines += 1
            if tokens >= options.shard_tokens:
                close()
                start, lines, tokens = offset, 0, 0
    if lines:
        close()
    return shards


def preflight_prompts(corpus: Path) -> list[list[int]]:
    """The first two rows of the corpus, up to 64 tokens each."""
    found = []
    for number, line in read_lines(corpus):
        found.append(parse_row(line, corpus, number).input_ids[:64])
        if len(found) == 2:
            break
    return found


def _read(shard: Shard) -> list[TokenRow]:
    with open(shard.corpus, "rb") as file:
        file.seek(shard.offset)
        return [parse_row(file.readline(), shard.corpus, i) for i in range(shard.lines)]


def _states(target: HfTarget, rows: list[TokenRow], shard: Shard) -> tuple[list[Tensor], list[Tensor]]:
    """Forward the rows in batches of like length; results in row order. Non-finite numbers are refused."""
    aux: dict[int, Tensor] = {}
    last: dict[int, Tensor] = {}
    for batch in _batches([len(row.input_ids) for row in rows], shard.batch_tokens):
        made = target.states([rows[i].input_ids for i in batch], shard.boundaries)
        for i, (a_TAH, h_TH) in zip(batch, made, strict=True):
            if not bool(torch.isfinite(a_TAH).all() and torch.isfinite(h_TH).all()):
                raise FaultFound(
                    "the target's states are not finite",
                    file=shard.corpus,
                    record=rows[i].id,
                    mend="use float32 or bfloat16 as states.dtype, or exclude the row",
                )
            aux[i], last[i] = a_TAH, h_TH
    return [aux[i] for i in range(len(rows))], [last[i] for i in range(len(rows))]


def _batches(lengths: list[int], budget: int) -> list[list[int]]:
    """Rows by length, longest first; a batch's padded size stays within the budget (one row at least)."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _teacher(target: HfTarget, row: TokenRow, last_TH: Tensor) -> Tensor:
    """[T] int32: the full head's argmax where the next token is a label, else -1.

    For the target's own greedy text that argmax *is* the label, so the head is not asked.
    """
    ids_T = torch.tensor(row.input_ids, dtype=torch.int32)
    wanted = torch.tensor(row.loss_mask[1:], dtype=torch.bool).nonzero().flatten()
    teacher_T = torch.full((len(ids_T),), NO_TEACHER, dtype=torch.int32)
    if row.is_own_greedy_text:
        teacher_T[wanted] = ids_T[wanted + 1]
        return teacher_T
    with torch.inference_mode():
        for chunk in wanted.split(_HEAD_CHUNK):
            teacher_T[chunk] = target.head(last_TH[chunk]).argmax(-1).to(torch.int32)
    return teacher_T
