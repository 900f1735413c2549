"""eyas.json: what Eyas knows of a drafter and an engine's config.json has no field for.

No engine reads it. `eyas export --check` holds the folder against it, which is how a shifted layer id or a
dropped flag is seen; `eyas bench` takes from it what training predicted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from eyas.core.errors import EyasError
from eyas.core.files import write_whole

RECORD = "eyas.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """boundaries: the aux boundaries of training. trained_length: tokens of the longest trained row, None if
    training did not say. accept_length: the walk's on held-out rows, with `drafts` drafts a round.
    coverage, best_coverage: share of the training labels in the draft vocabulary, and in the best one of its
    size; None without counts. flags: the norm flags of the network."""

    engine: str
    boundaries: list[int]
    dtype: str
    flags: dict[str, bool]
    trained_length: int | None
    accept_length: float | None
    drafts: int | None
    coverage: float | None = None
    best_coverage: float | None = None

    def write(self, folder: Path) -> None:
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        write_whole(folder / RECORD, orjson.dumps(fields, option=orjson.OPT_INDENT_2) + b"\n")


def read_record(folder: Path) -> ExportRecord | None:
    """The record of a folder that Eyas exported; None for a folder that others made."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        fields: dict[str, Any] = orjson.loads(path.read_bytes())
        if fields.pop("format") > FORMAT:
            raise EyasError("the record is of a newer Eyas", file=path, mend="upgrade Eyas")
        return ExportRecord(**fields)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EyasError(
            "the record of the export cannot be read",
            file=path,
            found=f"{type(error).__name__}: {error}",
            mend="export the checkpoint again with `eyas export`",
        ) from error
