"""What `eyas export --check` reads: a drafter's folder as it lies there, with what Eyas wrote of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from eyas.core.errors import EyasError
from eyas.drafter.foreign import read_config, read_weights
from eyas.drafter.start import CONFIG

from .layer_ids import ENGINES
from .record import RECORD, ExportRecord, read_record


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
    return DraftFolder(path, read_config(config), read_weights(path), read_record(path))


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
