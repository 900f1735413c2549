"""The state store: ragged safetensors shards of aux and last hidden states, one token after the other.

A shard `states-00000.safetensors` (train; `dev-`, `eval-` for the other splits) holds, for its rows in
order, input_ids int32 [N], loss_mask uint8 [N], teacher int32 [N], offsets int64 [R+1], aux [N, A*H],
last [N, H]. last is after the target's final norm. teacher[i] is the argmax of the target's full head
on last[i], that is its prediction of token i+1; it is -1 where token i+1 is no label. Row ids,
datasets and flags stand in the header.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from eyas.core.errors import EyasError
from eyas.core.manifest import require_manifest
from eyas.core.rows import EXACT, GREEDY, TokenRow

SPLITS = {"train": "states", "dev": "dev", "eval": "eval"}
"""Prefix of a split's shard names."""

NO_TEACHER = -1


@dataclass(frozen=True)
class StateRow:
    """One conversation with its states. T tokens, A aux boundaries, H target hidden."""

    id: str
    dataset: str
    flags: list[str]
    input_ids_T: Tensor
    loss_mask_T: Tensor
    teacher_T: Tensor
    aux_TAH: Tensor
    last_TH: Tensor

    def __len__(self) -> int:
        return len(self.input_ids_T)

    @property
    def is_own_greedy_text(self) -> bool:
        return GREEDY in self.flags and EXACT in self.flags


def pack_shard(
    rows: Sequence[TokenRow], aux: Sequence[Tensor], last: Sequence[Tensor], teacher: Sequence[Tensor]
) -> bytes:
    """The bytes of one shard; aux and last as the codec left them, one tensor a row."""
    lengths = [len(row.input_ids) for row in rows]
    assert lengths == [len(t) for t in aux] == [len(t) for t in last] == [len(t) for t in teacher]
    tensors = {
        "input_ids": torch.tensor([i for row in rows for i in row.input_ids], dtype=torch.int32),
        "loss_mask": torch.tensor([m for row in rows for m in row.loss_mask], dtype=torch.uint8),
        "teacher": torch.cat(list(teacher)).to(torch.int32),
        "offsets": torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int64),
        "aux": torch.cat(list(aux)),
        "last": torch.cat(list(last)),
    }
    header = [{"id": row.id, "dataset": row.dataset, "flags": row.flags} for row in rows]
    return save(tensors, metadata={"rows": orjson.dumps(header).decode()})


class StateShard:
    """One shard, mapped: a row's states are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = safe_open(path, framework="pt")
        self.header: list[dict[str, Any]] = orjson.loads(self._file.metadata()["rows"])
        self.offsets: list[int] = self._file.get_tensor("offsets").tolist()
        self._ids = self._file.get_tensor("input_ids")
        self._mask = self._file.get_tensor("loss_mask")
        self._teacher = self._file.get_tensor("teacher")
        self._aux = self._file.get_slice("aux")
        self._last = self._file.get_slice("last")

    def __len__(self) -> int:
        return len(self.header)

    def row(self, index: int) -> StateRow:
        a, b = self.offsets[index], self.offsets[index + 1]
        head = self.header[index]
        return StateRow(
            id=head["id"],
            dataset=head["dataset"],
            flags=head["flags"],
            input_ids_T=self._ids[a:b].long(),
            loss_mask_T=self._mask[a:b].bool(),
            teacher_T=self._teacher[a:b].long(),
            aux_TAH=self._aux[a:b].float(),
            last_TH=self._last[a:b].float(),
        )

    def tokens(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """(input ids, mask, teacher) of a row without reading its states."""
        a, b = self.offsets[index], self.offsets[index + 1]
        return self._ids[a:b].long(), self._mask[a:b].bool(), self._teacher[a:b].long()


class StateStore:
    """All shards of one split of an extract artefact, as one list of rows in corpus order."""

    def __init__(self, folder: Path, split: str = "train") -> None:
        self.manifest = require_manifest(folder, "extract")
        prefix = SPLITS[split]
        self.shards = [
            StateShard(folder / o.file) for o in self.manifest.outputs if o.file.startswith(f"{prefix}-")
        ]
        self._starts = [0]
        for shard in self.shards:
            self._starts.append(self._starts[-1] + len(shard))
        if not self.shards and split == "train":
            raise EyasError(
                "the artefact holds no training states", file=folder, mend="extract the corpus again"
            )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> StateRow:
        shard, inside = self._place(index)
        return shard.row(inside)

    def tokens(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        shard, inside = self._place(index)
        return shard.tokens(inside)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [
            b - a for shard in self.shards for a, b in zip(shard.offsets, shard.offsets[1:], strict=False)
        ]

    @property
    def boundaries(self) -> list[int]:
        return self.manifest.actual["boundaries"]

    def _place(self, index: int) -> tuple[StateShard, int]:
        assert 0 <= index < len(self)
        shard = bisect.bisect_right(self._starts, index) - 1
        return self.shards[shard], index - self._starts[shard]
