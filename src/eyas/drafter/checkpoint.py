"""Checkpoints `step-000123/`: weights, optimiser state, and a state file that completes them.

`state.json` is written last, atomically, and holds size and digest of the other files. A folder without
it, or whose files differ from it, is passed over with its reason and never deleted here.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from eyas.core.digest import read_digest
from eyas.core.errors import EyasError
from eyas.core.files import write_whole
from eyas.core.manifest import FORMAT, read_json

from .config import DrafterConfig
from .network import Drafter

STATE = "state.json"
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
CONFIG = "config.json"


@dataclass(frozen=True)
class Position:
    """Where a run stands: steps done, the epoch it is in and the rows of that epoch already consumed.

    skipped: steps without a term, for which the optimiser did nothing.
    """

    step: int = 0
    epoch: int = 0
    rows: int = 0
    skipped: int = 0


def folder_name(step: int) -> str:
    return f"step-{step:06d}"


def save_checkpoint(
    folder: Path,
    drafter: Drafter,
    optimizer: dict[str, Tensor] | None,
    position: Position,
    facts: dict[str, Any],
) -> None:
    """Write a checkpoint; it exists when its state file does. facts: what else the state file should say."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_whole(folder / WEIGHTS, save(contiguous(drafter.exported_state())))
    if optimizer is not None:
        write_whole(folder / OPTIMIZER, save(optimizer))
    drafter.config.write(folder / CONFIG)
    files = [
        {"file": p.name, "bytes": p.stat().st_size, "digest": read_digest(p)}
        for p in sorted(folder.iterdir())
    ]
    state = {"format": FORMAT, "position": asdict(position), "files": files, **facts}
    write_whole(folder / STATE, orjson.dumps(state, option=orjson.OPT_INDENT_2) + b"\n")


def contiguous(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors wants them: contiguous, in the order of their names."""
    return {name: state[name].contiguous() for name in sorted(state)}


def fault(folder: Path) -> str | None:
    """Why a folder is no whole checkpoint; None if it is one."""
    if not (folder / STATE).is_file():
        return f"{STATE} is missing, so it was never completed"
    state = read_json(folder / STATE, "the checkpoint's state file")
    for entry in state["files"]:
        path = folder / entry["file"]
        if not path.is_file():
            return f"{entry['file']} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{entry['file']} has {path.stat().st_size} bytes, {entry['bytes']} were written"
        if read_digest(path) != entry["digest"]:
            return f"the bytes of {entry['file']} are not those that were written"
    return None


def newest_checkpoint(folder: Path) -> Path | None:
    """The whole checkpoint with the most steps; says on standard error which newer ones it passed over."""
    for path in sorted(folder.glob("step-*"), key=_step_of, reverse=True):
        if not path.is_dir():
            continue
        reason = fault(path)
        if reason is None:
            return path
        print(f"train: passed over checkpoint {path.name}: {reason}", file=sys.stderr, flush=True)
    return None


def read_position(folder: Path) -> Position:
    return Position(**read_json(folder / STATE, "the checkpoint's state file")["position"])


def load_checkpoint(folder: Path, drafter: Drafter) -> dict[str, Tensor]:
    """Put the weights into the drafter; the optimiser's state, empty if the checkpoint holds none."""
    if DrafterConfig.read(folder / CONFIG) != drafter.config:
        raise EyasError(
            "the checkpoint is of a drafter of another shape",
            file=folder,
            mend="remove the folder and train again",
        )
    with torch.no_grad():
        own = drafter.exported_state()
        for name, tensor in load_file(folder / WEIGHTS).items():
            own[name].copy_(tensor)
    path = folder / OPTIMIZER
    return load_file(path) if path.is_file() else {}


def remove_old(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` whole checkpoints; unfinished ones stay for whoever wants to look."""
    whole = [path for path in sorted(folder.glob("step-*"), key=_step_of) if (path / STATE).is_file()]
    for path in whole[:-keep]:
        shutil.rmtree(path)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1
