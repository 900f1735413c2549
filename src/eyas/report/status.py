"""Which stages of a recipe are complete, begun or still to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .table import Table
from .text import number, size

if TYPE_CHECKING:
    from eyas.pipeline import Step


def states(steps: list[Step]) -> list[dict[str, Any]]:
    """One object a stage: name, state ("complete", "begun", "to do"), folder, rows, tokens, bytes, units."""
    found = []
    for step in steps:
        manifest = step.manifest
        state = "complete" if manifest else "begun" if step.folder.is_dir() else "to do"
        found.append(
            {
                "name": step.name,
                "state": state,
                "folder": str(step.folder),
                "rows": manifest.actual.get("rows") if manifest else None,
                "tokens": manifest.actual.get("tokens") if manifest else None,
                "bytes": manifest.total_bytes if manifest else None,
                "units_done": step.units_done,
            }
        )
    return found


def table(found: list[dict[str, Any]]) -> Table:
    shown = Table("", ("stage", "state", "rows", "tokens", "bytes", "units done", "artefact"), left=(0, 1, 6))
    for entry in found:
        shown.add_row(
            entry["name"],
            entry["state"],
            number(entry["rows"]),
            number(entry["tokens"]),
            size(entry["bytes"]),
            number(entry["units_done"]),
            Path(entry["folder"]).name,
        )
    return shown
