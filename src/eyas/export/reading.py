"""A drafter's folder as it lies there, whoever made it: its config and its tensors, nothing judged yet."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors.torch import load_file
from torch import Tensor

from eyas.core.errors import EyasError

from .layer_ids import ENGINES
from .record import RECORD, ExportRecord, read_record

CONFIG = "config.json"
_PICKLED = "pytorch_model.bin"


@dataclass(frozen=True)
class DraftFolder:
    """fields: config.json as it is. state: every stored tensor under its stored name. record: what Eyas
    wrote of it, None for a folder that others made."""

    path: Path
    fields: dict[str, Any]
    state: dict[str, Tensor]
    record: ExportRecord | None


def read_folder(path: Path) -> DraftFolder:
    """Read config, weights and record; EyasError if the folder holds no drafter at all."""
    config = path / CONFIG
    if not config.is_file():
        raise EyasError(
            "the folder holds no drafter",
            file=path,
            expected=f"{CONFIG} and *.safetensors",
            mend="give an engine's folder of `eyas export`, or a drafter's folder that others made",
        )
    try:
        fields = orjson.loads(config.read_bytes())
    except orjson.JSONDecodeError as error:
        raise EyasError("not valid JSON", file=config, found=str(error), mend="repair the file") from error
    return DraftFolder(path, fields, _read_state(path), read_record(path))


def engine_folder(path: Path, engine: str) -> Path:
    """`path` itself if a drafter lies there, else the engine's folder in an export artefact."""
    if not (path / CONFIG).is_file() and (path / engine / CONFIG).is_file():
        return path / engine
    return path


def any_engine_folder(path: Path) -> tuple[Path, str]:
    """(folder, engine that it was written for) of an export artefact or an engine's folder. A folder without a
    record of Eyas is taken as vLLM takes it, or as speculators' where its config says so."""
    if not (path / CONFIG).is_file():
        for engine in ("vllm", "sglang", "speculators", "trtllm"):
            if (path / engine / CONFIG).is_file():
                return path / engine, engine
    record = read_record(path) if (path / RECORD).is_file() else None
    if record is not None:
        assert record.engine in ENGINES
        return path, record.engine
    config = path / CONFIG
    is_speculators = config.is_file() and b'"speculators_model_type"' in config.read_bytes()
    return path, "speculators" if is_speculators else "vllm"


def _read_state(path: Path) -> dict[str, Tensor]:
    """All tensors of the folder, of one file or several. Pickled ones are read by torch's own safe reader."""
    state: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        state.update(load_file(file))
    pickled = path / _PICKLED
    if not state and pickled.is_file():
        try:
            state = torch.load(pickled, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise EyasError(
                "the pickled weights are more than tensors, so they are not loaded",
                file=pickled,
                found=str(error).splitlines()[0],
                mend="convert the drafter to safetensors",
            ) from error
    if not state:
        raise EyasError(
            "the folder holds no weights",
            file=path,
            expected="*.safetensors, or pytorch_model.bin with tensors alone",
            mend="fetch the drafter again",
        )
    return state
