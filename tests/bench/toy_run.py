"""The artefacts of a whole run on the toy target, made without its earlier stages."""

from __future__ import annotations

from pathlib import Path

import orjson

import toy
from eyas.core.artefact import Out
from eyas.core.contract import target_source
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, Source, measured
from eyas.core.rows import TokenRow
from eyas.drafter.checkpoint import Position, save_checkpoint
from eyas.drafter.network import Drafter
from eyas.drafter.walk import walk_store
from eyas.export import stage as export_stage
from eyas.export.options import ExportOptions
from eyas.states import stage as extract_stage
from eyas.states.options import ExtractOptions
from eyas.states.store import StateStore

NO_COUNTS = {"rows_in": 0, "rows_out": 0, "dropped": {}}


def source(folder: Path, stage: str, files: list[str], options: dict, actual: dict) -> Source:
    outputs = [measured(folder, file) for file in files]
    Manifest(stage, 1, "toy", stage * 4, options, {}, outputs, NO_COUNTS, {}, actual).write(folder)
    return Source(folder, stage * 4)


def write_merge(folder: Path, train: list[TokenRow], held_out: list[TokenRow]) -> Source:
    for split, rows in (("train", train), ("dev", []), ("eval", held_out)):
        write_whole(folder / f"{split}.jsonl", [row.line() for row in rows])
    return source(folder, "merge", ["train.jsonl", "dev.jsonl", "eval.jsonl"], {}, {})


def extract(folder: Path, merge: Source, target: Path) -> Source:
    options = ExtractOptions(boundaries=toy.BOUNDARIES, codec="float32", workers=1)
    inputs = {"merge": merge, "target": target_source(target)}
    return Source(folder, extract_stage.run(options, inputs, Out(folder)).fingerprint)


def train_artefact(folder: Path, drafter: Drafter, **actual: object) -> Source:
    """A train artefact around a drafter that was trained elsewhere; its walk lies there if it has one."""
    save_checkpoint(folder / "step-000007", drafter, None, Position(step=7), {})
    files = ["step-000007/model.safetensors", "step-000007/config.json"]
    known = {
        "boundaries": list(toy.BOUNDARIES),
        "accept_length": 1.5,
        "accept_length_by_dataset": {"chat": 1.4, "code": None},
        "drafts": 3,
        **actual,
    }
    return source(folder, "train", files, {"threads": 1, "epochs": 5}, known)


def write_train(folder: Path, drafter: Drafter, extracted: Path) -> Source:
    """The same, with the drafter's walk over the held-out rows."""
    walk = walk_store(drafter, StateStore(extracted, "eval"), 3)
    write_whole(folder / "walk.json", orjson.dumps(walk.plain()))
    return train_artefact(
        folder, drafter, accept_length=walk.accept_length, accept_length_by_dataset=walk.by_dataset
    )


def export(folder: Path, train: Source, target: Path, **options: object) -> Source:
    inputs = {"train": train, "target": target_source(target)}
    return Source(folder, export_stage.run(ExportOptions(**options), inputs, Out(folder)).fingerprint)


def whole_run(folder: Path, target: Path, drafter: Drafter, rows: list[TokenRow]) -> dict[str, Source]:
    """Inputs of the bench stage; the rows are both training and held out, the latter in two datasets."""
    held_out = [TokenRow(r.id, f"set-{i % 2}", r.input_ids, r.loss_mask, r.flags) for i, r in enumerate(rows)]
    merge = write_merge(folder / "merge", rows, held_out)
    extracted = extract(folder / "extract", merge, target)
    train = write_train(folder / "train", drafter, extracted.path)
    exported = export(folder / "export", train, target)
    return {
        "merge": merge,
        "extract": extracted,
        "train": train,
        "export": exported,
        "target": target_source(target),
    }
