"""The proof of a merged corpus: made anew from its sources, row by row, and compared.

Two proofs that share little: the choice and order of the rows are derived again from the sources and compared with
rows.idx; and every row of the output is parsed as JSON and compared with its parsed source line, by rules written
out here a second time. Digests are not looked at: what is found is found although they were recomputed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from eyas.core.digest import read_digest
from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, fingerprint, require_manifest
from eyas.core.rows import CUT
from eyas.merge import rowsidx
from eyas.merge.arrange import SPLITS, arrange
from eyas.merge.collect import collect
from eyas.merge.faults import Faults
from eyas.merge.index import LineIndex
from eyas.merge.inputs import TokenFile, plain_inputs, token_files
from eyas.merge.options import STAGE, MergeOptions
from eyas.merge.reader import lines_at
from eyas.merge.rules import ID_LIMIT, Rules
from eyas.merge.scan import line_of
from eyas.merge.select import choose
from eyas.merge.table import dataset_entry, totals
from eyas.merge.uniform import shuffle_faults
from eyas.merge.unpack import parquet_lines, unpacked

_ROWS = 512


def verify(folder: Path, inputs: list[Path] | None = None) -> list[str]:
    """Faults of a merged corpus in words, the first few of each kind; none if it is proven.

    inputs: where its sources lie, as for `eyas merge`; by default where they lay when it was made.
    """
    manifest = require_manifest(folder, "merge")
    try:
        index = rowsidx.read(folder)
    except EyasError as error:
        return [str(error)]
    faults = Faults()
    if manifest.fingerprint != fingerprint(STAGE, manifest.version, manifest.options, manifest.inputs):
        faults.add("manifest", "the fingerprint is not that of its options and inputs")
    excluded = manifest.options["exclude"]
    named = {
        digest
        for role, digest in manifest.inputs.items()
        if "/" in role and role.split("/")[0] not in excluded
    }
    if not named <= {file["digest"] for file in index.files}:
        faults.add("rows.idx", "its files are not those that the manifest names")
    files = _sources(manifest, index, inputs, faults)
    if files is not None:
        with tempfile.TemporaryDirectory(prefix="eyas-verify-") as scratch:
            _Proof(folder, manifest, index, faults).run(files, Path(scratch))
    shuffle_faults(manifest, index, faults)
    return faults.plain()


class _Proof:
    def __init__(self, folder: Path, manifest: Manifest, index: rowsidx.RowsIndex, faults: Faults) -> None:
        self.folder, self.manifest, self.rows, self.faults = folder, manifest, index, faults
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in manifest.options.items()
        }
        self.options = MergeOptions(**values)
        self.rules = Rules(
            self.options.max_seq_len,
            self.options.cut,
            self.options.min_trainable,
            manifest.actual["vocab_size"],
        )

    def run(self, files: list[TokenFile], scratch: Path) -> None:
        options = self.options
        files = unpacked(files, scratch, workers=1)
        collected = collect(files, self.rules, scratch, 1, options.dedup)
        suffixes = choose(collected, options, self.rules)
        entries = [dataset_entry(name, collected, options, suffixes) for name in collected.index.datasets]
        self._compare_totals(entries)
        splits = arrange(collected, entries, suffixes, self.rules, options.seed)
        for split in SPLITS:
            self._compare_order(split, splits[split].order, collected.index)
            self._compare_rows(split, splits[split].order, collected.index, suffixes)
        collected.records.close()

    def _compare_totals(self, entries: list[dict[str, Any]]) -> None:
        said = self.manifest.actual
        for field, value in totals(entries).items():
            if said.get(field) != value:
                self.faults.add("manifest", f"{field} is {said.get(field)}, the sources give {value}")
        for entry, told in zip(entries, said["datasets"], strict=False):
            if entry != told:
                wrong = [field for field in entry if entry[field] != told.get(field)]
                self.faults.add(
                    "manifest", f"dataset {entry['name']}: {', '.join(wrong)} differ from the sources"
                )
        if len(entries) != len(said["datasets"]):
            self.faults.add("manifest", "the datasets are not those of the sources")

    def _compare_order(self, split: str, expected: np.ndarray, index: LineIndex) -> None:
        """rows.idx against the order that sources, options and seed give."""
        if self.rows.rows[split] != len(expected):
            self.faults.add(
                "rows.idx", f"{split} has {self.rows.rows[split]} rows, the sources give {len(expected)}"
            )
            return
        at = 0
        for places in self.rows.places(split):
            lines = expected[at : at + len(places)].astype(np.int64)
            right = np.stack([index.files_of(lines), index.line_numbers(lines)], 1)
            for i in np.flatnonzero((right != places).any(1)).tolist():
                self.faults.add(
                    "rows.idx", f"row {at + i + 1} of {split} is another than seed and sources give"
                )
            at += len(places)

    def _compare_rows(
        self, split: str, expected: np.ndarray, index: LineIndex, suffixes: dict[int, int]
    ) -> None:
        """Every row of an output file against its source line."""
        name = f"{split}.{self.options.output_format}"
        sources = source_rows(index, expected, suffixes)
        rows = tokens = 0
        for rows, text in enumerate(self._output(name), 1):
            source = next(sources, None)
            if source is None:
                continue
            row, faults = _parsed(text)
            if not faults:
                tokens += len(row["input_ids"])
                faults = list(row_faults(row, *source, self.rules))
            for fault in faults:
                self.faults.add(name, f"row {rows}: {fault}")
        if rows != len(expected):
            self.faults.add(name, f"{rows} rows, the sources give {len(expected)}")
        said = self.manifest.output(name)
        if (said.rows, said.tokens) != (rows, tokens):
            told = f"{said.rows} rows and {said.tokens} tokens"
            self.faults.add("manifest", f"{name} has {told}, the file {rows} and {tokens}")

    def _output(self, name: str) -> Iterator[bytes]:
        path = self.folder / name
        if not path.is_file():
            return
        if name.endswith(".parquet"):
            yield from parquet_lines(path)
        else:
            with open(path, "rb") as file:
                yield from file


def source_rows(
    index: LineIndex, order: np.ndarray, suffixes: dict[int, int]
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(source line as JSON, dataset, the id that its row must have) for line numbers of the index."""
    with ExitStack() as stack:
        handles = [stack.enter_context(open(file.text, "rb", buffering=0)).fileno() for file in index.files]
        for at in range(0, len(order), _ROWS):
            lines = order[at : at + _ROWS]
            found = lines_at(index, lines)
            columns = (lines, found.files, found.places, found.lengths, found.numbers)
            for line, file, place, length, number in zip(*(c.tolist() for c in columns), strict=True):
                source = orjson.loads(line_of(os.pread(handles[file], length, place), place))
                dataset = found.datasets[file]
                name = f"{dataset}#{number}" if source.get("id") is None else str(source["id"])
                yield source, dataset, f"{name}~{suffixes[line]}" if line in suffixes else name


def _parsed(text: bytes) -> tuple[dict[str, Any], list[str]]:
    """An output line as JSON, and what is wrong with its form."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return {}, [f"not JSON: {error}"]
    if not isinstance(row, dict):
        return {}, ["not an object"]
    for key in ("input_ids", "loss_mask"):
        values = row.get(key)
        if not isinstance(values, list) or set(map(type, values)) != {int}:
            return row, [f"its {key} is not a list of integers"]
    return row, []


def row_faults(
    row: dict[str, Any], source: dict[str, Any], dataset: str, name: str, rules: Rules
) -> Iterator[str]:
    """What is wrong with a row of the output, given its source line and the dataset and id that it must have."""
    ids, mask = source["input_ids"], source["loss_mask"]
    length = _kept_tokens(mask, rules)
    if row["input_ids"] != ids[:length]:
        yield f"its ids are not the first {length} of its source"
    if row["loss_mask"] != mask[:length]:
        yield f"its mask is not the first {length} of its source's"
    if min(ids) < 0 or max(ids) >= (rules.vocab_size or ID_LIMIT):
        yield "its ids are not all inside the vocabulary"
    if not set(mask) <= {0, 1} or sum(mask[:length]) < rules.min_trainable:
        yield "its mask is not of 0 and 1, or has too few labels"
    flags = source.get("flags", [])
    if length < len(ids) and CUT not in flags:
        flags = [*flags, CUT]
    others = {key: value for key, value in source.items() if key not in ("input_ids", "loss_mask")}
    expected = {**others, "id": name, "dataset": dataset, "flags": flags}
    for key, value in expected.items():
        if row.get(key) != value:
            yield f"its {key} is {row.get(key)!r:.80}, not {value!r:.80}"
    if more := row.keys() - expected.keys() - {"input_ids", "loss_mask"}:
        yield f"it has keys that its source has not: {', '.join(sorted(more))}"


def _kept_tokens(mask: Sequence[int], rules: Rules) -> int:
    """Tokens that the cut leaves, found from the front: ends of whole turns, the last that fits."""
    if len(mask) <= rules.max_seq_len:
        return len(mask)
    if rules.cut == "token":
        return rules.max_seq_len
    ends = [i + 1 for i in range(rules.max_seq_len) if mask[i] and not mask[i + 1]]
    return ends[-1] if ends else 0


def _sources(
    manifest: Manifest, index: rowsidx.RowsIndex, inputs: list[Path] | None, faults: Faults
) -> list[TokenFile] | None:
    """The sources in the order of rows.idx, each with the content that it had; None if one is not there."""
    if inputs is None:
        paths = [Path(path) for path in manifest.run.get("sources", [])]
        given = dict(enumerate(paths)) if len(paths) == len(index.files) else {}
        chosen = [given.get(i) for i in range(len(index.files))]
    else:
        found = token_files(plain_inputs(inputs, manifest.options["exclude"]))
        by_name = {(file.dataset, file.name, file.digest): file.path for file in found}
        chosen = [by_name.get((file["dataset"], file["name"], file["digest"])) for file in index.files]
    files = []
    for path, file in zip(chosen, index.files, strict=True):
        label = f"{file['dataset']}/{file['name']}"
        if path is None or not path.is_file():
            faults.add("sources", f"{label} is not there: say with --inputs where the sources lie now")
        elif read_digest(path) != file["digest"]:
            faults.add("sources", f"{label} has changed since the merge: {path}")
        else:
            size = os.stat(path).st_size
            files.append(TokenFile(file["dataset"], file["name"], path, path, file["digest"], size))
    return files if len(files) == len(index.files) else None
