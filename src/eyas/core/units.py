"""The unit log: one line per finished unit, written after the unit's file is in place."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from .digest import file_digest, read_digest
from .errors import EyasError
from .files import write_whole


@dataclass(frozen=True)
class Unit:
    """A finished unit: its key, its file (relative to the artefact) and what the file holds."""

    unit: str
    file: str
    bytes: int
    digest: str
    rows: int = 0
    tokens: int = 0
    drops: dict[str, int] = field(default_factory=dict)


class UnitLog:
    """A unit is complete when its line is here and its file has that size and digest."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.path = folder / name
        self._units: dict[str, Unit] = {}
        if self.path.exists():
            self._read()

    def done(self, unit: str) -> Unit | None:
        """The unit's line if the unit is complete; a unit whose file is gone or spoiled is to be redone."""
        line = self._units.get(unit)
        if line is None:
            return None
        path = self.folder / line.file
        if not path.is_file() or path.stat().st_size != line.bytes or file_digest(path) != line.digest:
            return None
        return line

    def finish(
        self,
        unit: str,
        file: str,
        *,
        rows: int = 0,
        tokens: int = 0,
        drops: dict[str, int] | None = None,
        data: bytes | None = None,
    ) -> Unit:
        """Write `data` to `file` (unless it is already there in full) and log the unit as done."""
        path = self.folder / file
        if data is not None:
            write_whole(path, data)
        line = Unit(unit, file, path.stat().st_size, read_digest(path), rows, tokens, drops or {})
        with open(self.path, "ab") as log:
            log.write(orjson.dumps(asdict(line)) + b"\n")
            log.flush()
            os.fsync(log.fileno())
        self._units[unit] = line
        return line

    def _read(self) -> None:
        whole, torn = [], b""
        for line in self.path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                whole.append(line)
            else:
                torn = line
        if torn:
            write_whole(self.path, whole)
        for number, line in enumerate(whole, 1):
            try:
                unit = Unit(**orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError) as error:
                raise EyasError(
                    "the unit log has a spoiled line", file=self.path, record=number, mend="remove the folder"
                ) from error
            self._units[unit.unit] = unit
