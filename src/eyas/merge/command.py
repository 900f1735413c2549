"""`eyas merge` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eyas.core.errors import EyasError
from eyas.report.text import print_json, print_parts

Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="INPUT...",
        help="Folders with <dataset>/tokenized_data.jsonl, token files (.jsonl, .jsonl.gz, .jsonl.zst, .parquet), "
        "or artefacts of eyas tokenize.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Leave a dataset out; it is not read.")
]
MinTrainable = Annotated[int, typer.Option(help="Drop rows left with fewer labels than this.")]
Workers = Annotated[int, typer.Option(help="Processes; the result does not depend on it.")]


def merge_command(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="Folder of the corpus.")],
    max_seq_len: Annotated[int, typer.Option(help="Cut longer rows, ids and mask together.")] = 8192,
    seed: Annotated[int, typer.Option(help="Of the shuffle, samples, caps and the development split.")] = 42,
    exclude: Exclude = None,
    cap: Annotated[
        list[str] | None, typer.Option(metavar="NAME=RECORDS", help="At most so many rows.")
    ] = None,
    cap_tokens: Annotated[
        list[str] | None, typer.Option(metavar="NAME=N", help="At most so many tokens, after the cut.")
    ] = None,
    sample: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FRACTION", help="Keep this fraction of the rows.")
    ] = None,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Drop rows whose ids and mask an earlier row has.")
    ] = False,
    min_trainable: MinTrainable = 1,
    min_kept: Annotated[
        float, typer.Option(help="Fail if less than this share of a dataset's rows is valid.")
    ] = 0.5,
    cut: Annotated[
        str,
        typer.Option(metavar="token|turn", help="Cut at the length, or at the last whole turn that fits."),
    ] = "token",
    heldout: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Write a dataset to the held-out file.")
    ] = None,
    dev_fraction: Annotated[
        float, typer.Option(help="Fraction of the training rows that goes to the development file.")
    ] = 0.0,
    expect_records: Annotated[
        int | None, typer.Option(help="Records that you expect; the difference is explained.")
    ] = None,
    expect_tokens: Annotated[
        int | None, typer.Option(help="Tokens that you expect; the difference is explained.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, or its folder: ids outside it are refused.")
    ] = None,
    output_format: Annotated[
        str, typer.Option(metavar="jsonl|parquet", help="Form of the row files.")
    ] = "jsonl",
    workers: Workers = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is in --out when the new corpus is complete.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Merge token sets into one corpus: cut, checked, counted, shuffled; every dropped row has a reason."""
    from eyas.core.artefact import Out
    from eyas.merge.inputs import TOKENIZER, plain_inputs, tokenizer_source
    from eyas.merge.options import MergeOptions
    from eyas.merge.stage import run
    from eyas.report import merge as report

    options = MergeOptions(
        max_seq_len=max_seq_len,
        seed=seed,
        exclude=_names(exclude),
        cap=_numbers("--cap", cap, int),
        cap_tokens=_numbers("--cap-tokens", cap_tokens, int),
        sample=_numbers("--sample", sample, float),
        dedup=dedup,
        min_trainable=min_trainable,
        min_kept=min_kept,
        cut=one_of("--cut", cut, "token", "turn"),  # type: ignore[arg-type]
        heldout=_names(heldout),
        dev_fraction=dev_fraction,
        output_format=one_of("--output-format", output_format, "jsonl", "parquet"),  # type: ignore[arg-type]
        workers=workers,
    )
    sources = plain_inputs(inputs, options.exclude, workers)
    if tokenizer is not None:
        sources[TOKENIZER] = tokenizer_source(tokenizer)
    manifest = run(
        options,
        sources,
        Out(out, overwrite=overwrite),
        expect_records=expect_records,
        expect_tokens=expect_tokens,
    )
    if as_json:
        print_json(report.as_json(manifest, expect_records, expect_tokens))
    else:
        print_parts(*report.parts(manifest, expect_records, expect_tokens))


def one_of(flag: str, value: str, *choices: str) -> str:
    if value not in choices:
        raise EyasError(f"{flag} has an unknown value", expected=" or ".join(choices), found=value)
    return value


def _names(given: list[str] | None) -> tuple[str, ...]:
    """Sorted, as their order on the command line means nothing."""
    return tuple(sorted(set(given or [])))


def _numbers(flag: str, given: list[str] | None, kind: type) -> dict[str, Any]:
    """NAME=NUMBER settings by name."""
    found: dict[str, Any] = {}
    for text in given or []:
        name, _, number = text.rpartition("=")
        try:
            value = kind(number)
        except ValueError:
            name = ""
        if not name:
            raise EyasError(f"{flag} is not NAME=NUMBER", found=text, mend=f"write it as {flag} B1=1000")
        if name in found:
            raise EyasError(f"{flag} names a dataset twice", found=name, mend="name it once")
        found[name] = value
    return dict(sorted(found.items()))
