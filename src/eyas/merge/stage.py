"""The merge stage: many token sets become one corpus, in two passes and in memory that hardly grows with it.

The first pass judges every line (`scan`) and keeps two numbers of it in memory; then duplicates, samples and caps
take their rows away, the order is shuffled, and the second pass (`write`) reads each kept line again and writes its
row where the order puts it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from eyas.core.artefact import PARTS, Out, Workbench, open_workbench
from eyas.core.digest import file_digest
from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, Source, measured
from eyas.merge import rowsidx
from eyas.merge.arrange import ORDER, arrange
from eyas.merge.collect import collect
from eyas.merge.inputs import TOKENIZER, TokenFile, is_plain, token_files, vocabulary
from eyas.merge.options import STAGE, VERSION, MergeOptions
from eyas.merge.predict import predict
from eyas.merge.reader import changed
from eyas.merge.rules import Rules
from eyas.merge.select import choose
from eyas.merge.table import dataset_entry, notes, require_kept, totals
from eyas.merge.unpack import unpacked
from eyas.merge.write import require_space, write_rows


def run(
    options: MergeOptions,
    inputs: dict[str, Source],
    out: Out,
    *,
    expect_records: int | None = None,
    expect_tokens: int | None = None,
    vocab_size: int | None = None,
) -> Manifest:
    """Merge the token rows of `inputs`: artefacts of tokenize, and files (`inputs.plain_inputs` names them).

    An input with the role `tokenizer` bounds the ids; vocab_size saves reading it and must come with it.
    expect_records, expect_tokens: what the user expects of the corpus. The content does not depend on it, so it
    stands in the manifest's `run`.
    """
    assert vocab_size is None or TOKENIZER in inputs, "vocab_size without the input that it belongs to"
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            return bench
        if vocab_size is None and TOKENIZER in inputs:
            vocab_size = vocabulary(inputs[TOKENIZER])
        rules = Rules(options.max_seq_len, options.cut, options.min_trainable, vocab_size)
        parts = bench.folder / PARTS
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        expected = {"records": expect_records, "tokens": expect_tokens}
        try:
            return _merge(options, token_files(inputs), rules, bench, expected)
        except BaseException:
            # A merge is one unit: there is nothing here that a second run could go on with.
            shutil.rmtree(bench.folder, ignore_errors=True)
            raise


def _merge(
    options: MergeOptions,
    files: list[TokenFile],
    rules: Rules,
    bench: Workbench,
    expected: dict[str, int | None],
) -> Manifest:
    options.check({file.dataset for file in files})
    excluded = [file for file in files if file.dataset in options.exclude]
    files = [file for file in files if file.dataset not in options.exclude]
    if not files:
        raise EyasError("every dataset is excluded", found=", ".join(options.exclude), mend="exclude fewer")
    stamps = [_stamp(file) for file in files]
    texts = unpacked(files, bench.folder / PARTS, options.workers)
    bench.predict(predict(texts, rules))

    collected = collect(texts, rules, bench.folder / PARTS, options.workers, options.dedup)
    suffixes = choose(collected, options, rules)
    entries = [dataset_entry(name, collected, options, suffixes) for name in collected.index.datasets]
    counts = require_kept(entries, options.min_kept, collected.examples)

    splits = arrange(collected, entries, suffixes, rules, options.seed)
    size = sum(rows.bytes for rows in splits.values())
    write = write_rows
    if options.output_format == "parquet":
        from eyas.merge.parquet import write_parquet as write

        size //= 2  # a quarter is usual
    require_space(bench.folder, size)
    outputs = [
        write(bench.folder / f"{split}.{options.output_format}", rows, options.workers)
        for split, rows in splits.items()
    ]
    rowsidx.write(bench.folder, collected.index, {split: rows.order for split, rows in splits.items()})
    outputs.append(measured(bench.folder, rowsidx.FILE))
    for file, before in zip(files, stamps, strict=True):
        if _stamp(file) != before:
            raise changed(file.path)

    total = totals(entries)
    actual = {
        "rows": total["records_kept"],
        "tokens": total["tokens_kept"],
        **total,
        "datasets": entries,
        "excluded": _excluded(excluded),
        "examples": collected.examples,
        "notes": notes(entries, options),
        "order": ORDER,
        "vocab_size": rules.vocab_size,
    }
    places = [os.path.abspath(file.path) for file in files]
    return bench.publish(outputs, counts, actual, {"sources": places, "expected": expected})


def _stamp(file: TokenFile) -> tuple[int, ...]:
    """What changes when a file does. EyasError if it is not what its digest says any more."""
    status = os.stat(file.path)
    if is_plain(file) and file_digest(file.path) != file.digest:
        raise changed(file.path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _excluded(files: list[TokenFile]) -> list[dict[str, Any]]:
    found: dict[str, int] = {}
    for file in files:
        found[file.dataset] = found.get(file.dataset, 0) + file.bytes
    return [{"name": name, "bytes": size} for name, size in found.items()]
