"""Small token sets for the tests of merge, and short ways to merge them and to read what came out."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eyas.core.artefact import Out
from eyas.core.manifest import Manifest
from eyas.merge.inputs import plain_inputs
from eyas.merge.options import MergeOptions
from eyas.merge.stage import run

MAKER = Path(__file__).resolve().parents[2] / ".." / "shared" / "bench" / "make_merge_corpus.py"


def row(generator: random.Random, length: int, **more: Any) -> dict[str, Any]:
    """A row with at least one label among its first half."""
    mask = [generator.randrange(2) for _ in range(length)]
    mask[generator.randrange(max(1, length // 2))] = 1
    return {"input_ids": [generator.randrange(163840) for _ in range(length)], "loss_mask": mask, **more}


def rows(seed: int, count: int, longest: int = 40) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    return [row(generator, generator.randrange(1, longest)) for _ in range(count)]


def write(file: Path, lines: list[Any], compact: bool = False) -> Path:
    """A file of JSON lines; bytes are written as they are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    separators = (",", ":") if compact else None
    texts = [
        line if isinstance(line, bytes) else json.dumps(line, separators=separators).encode()
        for line in lines
    ]
    file.write_bytes(b"".join(text + b"\n" for text in texts))
    return file


def write_sets(folder: Path, **datasets: list[Any]) -> Path:
    for number, (name, lines) in enumerate(datasets.items()):
        write(folder / name / "tokenized_data.jsonl", lines, compact=number % 2 == 1)
    return folder


def merge(out: Path, *inputs: Path, overwrite: bool = False, **options: Any) -> Manifest:
    chosen = MergeOptions(**options)
    return run(chosen, plain_inputs(list(inputs), chosen.exclude), Out(out, overwrite=overwrite))


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    """Every file of an artefact but for the manifest's `run`."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(files["manifest.json"])
    del manifest["run"]
    return {**files, "manifest.json": json.dumps(manifest, sort_keys=True).encode()}


def entry(manifest: Manifest, name: str) -> dict[str, Any]:
    return next(entry for entry in manifest.actual["datasets"] if entry["name"] == name)


def make_corpus(folder: Path, *arguments: str) -> dict[str, Any]:
    """The corpus maker's corpus; its own true counts per dataset."""
    if not MAKER.is_file():
        pytest.skip(f"the corpus maker is not there: {MAKER}")
    subprocess.run(
        [sys.executable, str(MAKER), "--out", str(folder), *arguments], check=True, capture_output=True
    )
    return json.loads((folder / "manifest.json").read_bytes())["datasets"]
