"""The manifest: what an artefact is, what it was made of and what it holds. Written last."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .digest import file_digest, read_digest, value_digest
from .errors import EyasError
from .files import write_whole
from .options import content

FORMAT = 1
"""Version of the form of artefacts; a reader refuses a newer one."""

NAME = "manifest.json"


@dataclass(frozen=True)
class Source:
    """Something a stage reads: where it lies now, and the fingerprint that stands for its content."""

    path: Path
    fingerprint: str


@dataclass(frozen=True)
class Output:
    """One file of an artefact."""

    file: str
    bytes: int
    digest: str
    rows: int | None = None
    tokens: int | None = None

    def plain(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "bytes": self.bytes,
            "digest": self.digest,
            "rows": self.rows,
            "tokens": self.tokens,
        }


@dataclass(frozen=True)
class Manifest:
    """Everything but `run` is a function of inputs, options and seed, byte for byte."""

    stage: str
    version: int
    name: str
    fingerprint: str
    options: dict[str, Any]
    inputs: dict[str, str]
    outputs: list[Output]
    counts: dict[str, Any]
    predicted: dict[str, Any]
    actual: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)

    def output(self, file: str) -> Output:
        return next(output for output in self.outputs if output.file == file)

    @property
    def total_bytes(self) -> int:
        return sum(output.bytes for output in self.outputs)

    def write(self, folder: Path) -> None:
        fields = {
            "format": FORMAT,
            "stage": self.stage,
            "version": self.version,
            "name": self.name,
            "fingerprint": self.fingerprint,
            "options": self.options,
            "inputs": self.inputs,
            "outputs": [output.plain() for output in self.outputs],
            "counts": self.counts,
            "predicted": self.predicted,
            "actual": self.actual,
            "run": self.run,
        }
        write_whole(folder / NAME, orjson.dumps(fields, option=orjson.OPT_INDENT_2) + b"\n")


def fingerprint(stage: str, version: int, options: Any, inputs: dict[str, str]) -> str:
    """Digest of everything that determines an artefact's content; known before anything runs."""
    return value_digest({"stage": stage, "version": version, "options": content(options), "inputs": inputs})


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object that Eyas wrote; EyasError if it is spoiled or of a newer format."""
    try:
        fields = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise EyasError(
            f"{what} is not valid JSON", file=path, found=str(error), mend="remove the folder"
        ) from error
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise EyasError(f"{what} has no format version", file=path, mend="remove the folder")
    if fields["format"] > FORMAT:
        raise EyasError(
            f"{what} was written by a newer version of Eyas",
            file=path,
            expected=f"format {FORMAT} or older",
            found=f"format {fields['format']}",
            mend="upgrade Eyas, or choose another --workspace",
        )
    return fields


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of an artefact; None if the folder has none, that is, it is unfinished."""
    path = folder / NAME
    if not path.exists():
        return None
    fields = read_json(path, "the manifest")
    fields.pop("format")
    try:
        fields["outputs"] = [Output(**output) for output in fields["outputs"]]
        return Manifest(**fields)
    except (KeyError, TypeError) as error:
        raise EyasError(
            "the manifest lacks fields", file=path, found=str(error), mend="remove the folder"
        ) from error


def require_manifest(folder: Path, stage: str) -> Manifest:
    """The manifest of a finished artefact of `stage`; EyasError if there is none."""
    manifest = read_manifest(folder) if folder.is_dir() else None
    if manifest is None:
        raise EyasError(
            f"no finished {stage} artefact is there",
            file=folder,
            expected=f"a folder with {NAME}",
            mend=f"run `eyas {stage}` first, or give its --out folder",
        )
    if manifest.stage != stage:
        raise EyasError(
            "the artefact is of another stage",
            file=folder,
            expected=stage,
            found=manifest.stage,
            mend=f"give a {stage} artefact",
        )
    return manifest


def artefact_source(folder: Path, stage: str) -> Source:
    """A finished artefact as an input, by its own fingerprint."""
    return Source(folder, require_manifest(folder, stage).fingerprint)


def file_source(path: Path) -> Source:
    """A user's file as an input, by its content."""
    if not path.is_file():
        raise EyasError("the file does not exist", file=path, mend="give the path of a file that is there")
    return Source(path, file_digest(path))


def measured(folder: Path, file: str, rows: int | None = None, tokens: int | None = None) -> Output:
    """An output as it lies on the disk now."""
    path = folder / file
    return Output(file, path.stat().st_size, read_digest(path), rows, tokens)


def spoiled(folder: Path, manifest: Manifest) -> list[str]:
    """What is wrong with an artefact's files: missing, of another size, of other bytes. Reads everything."""
    faults = []
    for output in manifest.outputs:
        path = folder / output.file
        if not path.is_file():
            faults.append(f"{output.file}: missing")
        elif path.stat().st_size != output.bytes:
            faults.append(f"{output.file}: {path.stat().st_size} bytes, the manifest says {output.bytes}")
        elif read_digest(path) != output.digest:
            faults.append(f"{output.file}: its bytes are not those that were written")
    return faults
