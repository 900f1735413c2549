"""The merge stage: many token sets become one corpus in two passes and constant memory."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from ..core.artefact import PARTS, Out, Workbench, open_workbench
from ..core.counts import Counts
from ..core.errors import EyasError
from ..core.executor import each
from ..core.files import appearing
from ..core.manifest import Manifest, Source, measured
from . import names, order, rowsidx
from .index import NAMELESS, SIZE, LineIndex
from .inputs import TOKENIZER, TokenFile, token_files
from .options import MergeOptions
from .rules import CUT, INVALID, Rules
from .scan import BLANK, KEPT, Scanned, scan, segments
from .select import REASON_OF, FactsFile, drop_duplicates, drop_over_cap, drop_unsampled, kept_lines
from .write import batches, write_batch

STAGE = "merge"
VERSION = 1


def run(
    options: MergeOptions,
    inputs: dict[str, Source],
    out: Out,
    *,
    expect_records: int | None = None,
    expect_tokens: int | None = None,
    vocab_size: int | None = None,
) -> Manifest:
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            return bench
        return Merge(options, inputs, bench, vocab_size).run()


class Merge:
    def __init__(
        self, options: MergeOptions, inputs: dict[str, Source], bench: Workbench, vocab_size: int | None
    ) -> None:
        self.options = options
        self.bench = bench
        files = token_files(inputs)
        known = {file.dataset for file in files}
        for field in ("exclude", "heldout", "cap", "cap_tokens", "sample"):
            for name in getattr(options, field):
                if name not in known:
                    raise EyasError(
                        f"--{field.replace('_', '-')} names a dataset that is not there",
                        expected=", ".join(sorted(known)),
                        found=name,
                        mend="correct the name",
                    )
        self.excluded = [file for file in files if file.dataset in options.exclude]
        self.files = [file for file in files if file.dataset not in options.exclude]
        if not self.files:
            raise EyasError("every dataset is excluded", found=", ".join(sorted(known)), mend="exclude fewer")
        self.rules = Rules(options.max_seq_len, options.cut, options.min_trainable, vocab_size)
        self.index = LineIndex(self.files)
        self.parts = bench.folder / PARTS
        self.parts.mkdir(exist_ok=True)
        self.facts = FactsFile(self.parts / "facts")
        self.examples: dict[str, list[dict[str, Any]]] = {}

    def run(self) -> Manifest:
        options = self.options
        self.bench.predict({"records": sum(f.rows or 0 for f in self.files), "tokens": sum(f.tokens or 0 for f in self.files)})
        self._scan()
        ranges = self.index.dataset_ranges()
        suffixes: dict[int, int] = {}
        for dataset, lines in ranges.items():
            suffixes.update(names.suffixes(self.index, self.facts, *lines))
        for line, number in suffixes.items():
            self.index.words[line] += len(f"~{number}")
        if options.dedup:
            drop_duplicates(self.facts, self.parts / "keys", len(self.index))
        for dataset, lines in ranges.items():
            if dataset in options.sample:
                drop_unsampled(self.facts, lines, dataset, options.sample[dataset], options.seed)
            if dataset in options.cap or dataset in options.cap_tokens:
                drop_over_cap(self.facts, lines, dataset, options)
        train, held = array("I"), array("I")
        for dataset, lines in ranges.items():
            (held if dataset in options.heldout else train).extend(kept_lines(self.facts, lines))
        order.shuffle(train, options.seed)
        splits = {"train": np.frombuffer(train, np.uint32), "eval": np.frombuffer(held, np.uint32), "dev": np.empty(0, np.uint32)}
        table = [self._entry(dataset, lines) for dataset, lines in ranges.items()]
        counts = Counts(
            sum(e["records_in"] for e in table), sum(e["records_kept"] for e in table)
        )
        for entry in table:
            counts.dropped.update(entry["dropped"])
        counts.require(options.min_kept, "the merge", "look at the reasons")
        outputs = []
        for split, rows in splits.items():
            path = self.bench.folder / f"{split}.jsonl"
            with appearing(path) as temporary:
                temporary.touch()
                tasks = list(batches(temporary, self.index, rows, suffixes, self.rules))
                for _ in each(write_batch, tasks, options.workers):
                    pass
            tokens = 0
            outputs.append(measured(self.bench.folder, path.name, len(rows), tokens))
        rowsidx.write(
            self.bench.folder,
            self.files,
            {split: len(rows) for split, rows in splits.items()},
            (np.stack([self.index.files_of(r), self.index.line_numbers(r)], 1) for r in (rows.astype(np.int64) for rows in splits.values())),
        )
        outputs.append(measured(self.bench.folder, rowsidx.FILE))
        self.facts.close()
        actual = {
            "records_in": counts.rows_in,
            "records_kept": counts.rows_out,
            "tokens_kept": sum(e["tokens_kept"] for e in table),
            "datasets": table,
            "order": order.RULE,
        }
        return self.bench.publish(outputs, counts, actual)

    def _scan(self) -> None:
        tasks = []
        for number, file in enumerate(self.files):
            tasks += segments(number, file.path, file.bytes, file.dataset, self.rules, self.options.dedup)
        done: dict[int, Scanned] = {}
        place = {id(task): i for i, task in enumerate(tasks)}
        following = 0
        begun = -1
        with open(self.parts / "keys", "wb") as keys:
            for task, scanned in each(scan, tasks, self.options.workers):
                done[place[id(task)]] = scanned
                while following in done:
                    scanned = done.pop(following)
                    while begun < tasks[following].file:
                        begun += 1
                        self.index.begin_file()
                    self._add(scanned)
                    keys.write(scanned.keys)
                    following += 1
        while begun < len(self.files) - 1:
            begun += 1
            self.index.begin_file()

    def _add(self, scanned: Scanned) -> None:
        first = len(self.index)
        facts = scanned.facts()
        self.index.blanks.extend((np.flatnonzero(facts["reason"] == BLANK) + first).tolist())
        words = np.frombuffer(scanned.words, np.uint32).copy()
        self.index.add(np.frombuffer(scanned.lengths, np.uint32), words)
        nameless = np.flatnonzero(words & NAMELESS)
        dataset = self.index.files[len(self.index.first_lines) - 1].dataset
        start = self.index.dataset_ranges()[dataset][0]
        numbers = self.index.record_numbers(nameless + first, start)
        for i, number in zip(nameless.tolist(), numbers.tolist(), strict=True):
            import orjson

            self.index.words[first + i] += len(orjson.dumps(f"{dataset}#{number}"))
        self.facts.append(facts)

    def _entry(self, dataset: str, lines: tuple[int, int]) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "name": dataset,
            "role": "heldout" if dataset in self.options.heldout else "train",
            "records_in": 0, "records_kept": 0, "tokens_in": 0, "tokens_kept": 0, "trainable_tokens": 0, "cut_records": 0,
            "dropped": {},
        }
        for _, run in self.facts.runs(*lines):
            kept = run["reason"] == KEPT
            entry["records_in"] += int((run["reason"] != BLANK).sum())
            entry["records_kept"] += int(kept.sum())
            entry["tokens_in"] += int(run["tokens_in"].sum())
            entry["tokens_kept"] += int(run["tokens"][kept].sum())
            entry["trainable_tokens"] += int(run["labels"][kept].sum())
            entry["cut_records"] += int((kept & (run["tokens"] < run["tokens_in"])).sum())
            for code, n in zip(*np.unique(run["reason"][~kept], return_counts=True), strict=True):
                if code != BLANK:
                    name = REASON_OF[int(code)]
                    entry["dropped"][name] = entry["dropped"].get(name, 0) + int(n)
        return entry
