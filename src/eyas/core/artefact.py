"""A stage's working directory, from its first unit to its manifest.

The work goes on in the artefact's own folder; `work.json` says whose work it is, `units.jsonl` which
units are done, and `manifest.json`, written last, that all of it is. A kill at any moment loses at most
the units in flight. With `anew` or `overwrite` the work goes on beside the old artefact, which is
exchanged for the new one in one system call when that is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from . import manifest as manifests
from .counts import Counts
from .errors import EyasError
from .files import remove_strays, sync, write_whole
from .manifest import FORMAT, Manifest, Output, Source, read_json, read_manifest
from .options import content
from .units import UnitLog
from .usage import Usage

WORK = "work.json"
UNITS = "units.jsonl"
PARTS = "parts"
"""Folder of unit files that the final files are joined from; gone when the artefact is complete."""


@dataclass(frozen=True)
class Out:
    """Where a stage's artefact goes.

    name: the recipe's name, for people. anew: make it again though it is complete (`--from`).
    overwrite: replace whatever is there (`--overwrite`).
    """

    path: Path
    name: str = "plain"
    anew: bool = False
    overwrite: bool = False


class Workbench:
    """What a stage writes to. Use `open_workbench`."""

    def __init__(self, folder: Path, head: dict[str, Any], out: Out) -> None:
        self.folder = folder
        self.head = head
        self.out = out
        self.units = UnitLog(folder, UNITS)
        self._usage = Usage()

    def predict(self, predicted: dict[str, Any]) -> None:
        """Write down what will come out, before the first unit; an earlier prediction of this work stays."""
        if self.head.get("predicted") is None:
            self.head["predicted"] = predicted
            write_whole(self.folder / WORK, orjson.dumps(self.head))

    def publish(
        self,
        outputs: list[Output],
        counts: Counts,
        actual: dict[str, Any],
        run_notes: dict[str, Any] | None = None,
    ) -> Manifest:
        """Write the manifest, drop the scaffolding, and put the folder in its place.

        run_notes: facts of this run alone, say where the inputs lay, for the manifest's `run`.
        """
        manifest = Manifest(
            stage=self.head["stage"],
            version=self.head["version"],
            name=self.out.name,
            fingerprint=self.head["fingerprint"],
            options=self.head["options"],
            inputs=self.head["inputs"],
            outputs=sorted(outputs, key=lambda output: output.file),
            counts=counts.plain(),
            predicted=self.head.get("predicted") or {},
            actual=actual,
            run={**self._run(), **(run_notes or {})},
        )
        manifest.write(self.folder)
        remove_scaffolding(self.folder)
        if self.folder != self.out.path:
            _exchange(self.folder, self.out.path)
        return manifest

    def close(self) -> None:
        self._usage.close()

    def _run(self) -> dict[str, Any]:
        """Facts of this run; the only part of a manifest that two runs may differ in."""
        from eyas import __version__

        return {
            **self._usage.plain(),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "host": socket.gethostname(),
            "eyas": __version__,
            "python": sys.version.split()[0],
            "libraries": _library_versions(),
            "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        }


@contextlib.contextmanager
def open_workbench(
    stage: str, version: int, options: Any, inputs: dict[str, Source], out: Out
) -> Iterator[Workbench | Manifest]:
    """The finished manifest if the artefact is complete, else a locked workbench to make it on.

    Raises EyasError if another process works there, if the folder holds something else (`--overwrite`
    replaces it), or if it was written by a newer version.
    """
    digests = {role: source.fingerprint for role, source in sorted(inputs.items())}
    head = {
        "format": FORMAT,
        "stage": stage,
        "version": version,
        "fingerprint": manifests.fingerprint(stage, version, options, digests),
        "options": content(options),
        "inputs": digests,
    }
    finished = read_manifest(out.path) if out.path.is_dir() else None
    if finished and finished.fingerprint == head["fingerprint"] and not out.anew:
        remove_scaffolding(out.path)
        yield finished
        return
    folder = _choose_folder(out, head, finished)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        head = _claim(folder, head)
        remove_strays(folder)
        bench = Workbench(folder, head, out)
        try:
            yield bench
        finally:
            bench.close()


def _choose_folder(out: Out, head: dict[str, Any], finished: Manifest | None) -> Path:
    beside = out.path.with_name(f".{out.path.name}.anew")
    if not out.path.exists():
        return out.path
    if not out.path.is_dir():
        raise EyasError(
            "the output is a file", file=out.path, expected="a folder", mend="choose another --out"
        )
    if finished is None and (not any(out.path.iterdir()) or _owner(out.path) == head["fingerprint"]):
        return out.path
    if out.overwrite or (out.anew and finished):
        return beside
    raise EyasError(
        "the output folder is not empty and holds something else",
        file=out.path,
        expected=f"an empty folder or the artefact {head['fingerprint'][:12]}",
        found=finished.fingerprint[:12] if finished else "files without a manifest",
        mend="choose another --out, or add --overwrite to replace it",
    )


def _owner(folder: Path) -> str | None:
    path = folder / WORK
    return read_json(path, "the work file")["fingerprint"] if path.exists() else None


def _claim(folder: Path, head: dict[str, Any]) -> dict[str, Any]:
    """Go on with this very work if it was begun here, else begin it in the emptied folder."""
    if _owner(folder) == head["fingerprint"]:
        return read_json(folder / WORK, "the work file")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    write_whole(folder / WORK, orjson.dumps(head))
    return head


def remove_scaffolding(folder: Path) -> None:
    """After the manifest, unit files and the claim are of no more use."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    (folder / WORK).unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise EyasError(
            "another process is working on this artefact", file=folder, mend="wait for it, or stop it first"
        ) from error
    try:
        yield
    finally:
        os.close(handle)


def _exchange(new: Path, old: Path) -> None:
    """Put `new` in the place of `old` (if any) atomically, and remove what was there."""
    if not old.exists():
        os.rename(new, old)
    else:
        libc = ctypes.CDLL(None, use_errno=True)
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if libc.renameat2(here, os.fsencode(new), here, os.fsencode(old), exchange) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(old))
        shutil.rmtree(new)
    sync(old.parent)


def _library_versions() -> dict[str, str]:
    """Versions of the numeric libraries that are loaded now; those that a stage did not need are left out."""
    names = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
    return {
        name: sys.modules[name].__version__ for name in names if hasattr(sys.modules.get(name), "__version__")
    }
