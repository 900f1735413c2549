"""`eyas plan merge`: what each cut and each left-out dataset would give, before anything is merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from eyas.core.errors import EyasError
from eyas.merge.command import Exclude, Inputs, Json, MinTrainable, Workers
from eyas.report.table import Part, Table
from eyas.report.text import duration, number, print_json, print_parts, share, size


def plan_merge_command(
    inputs: Inputs,
    max_seq_len: Annotated[
        str, typer.Option(metavar="N,N,...", help="Cuts to compare.")
    ] = "4096,8192,12288,16384",
    bytes_per_token: Annotated[
        float,
        typer.Option(
            help="Bytes of hidden states a token; 4 x hidden size x 2 at 16 bits, less with a codec."
        ),
    ] = 43008,
    tokens_per_second: Annotated[float, typer.Option(help="Tokens that extraction handles a second.")] = 339,
    exclude: Exclude = None,
    min_trainable: MinTrainable = 1,
    workers: Workers = 1,
    as_json: Json = False,
) -> None:
    """Show what each cut and each left-out dataset would give in records, tokens, bytes and hours: one pass."""
    cuts = _cuts(max_seq_len)
    plan = plan_merge(inputs, cuts, bytes_per_token, tokens_per_second, exclude or [], min_trainable, workers)
    print_json(plan) if as_json else print_parts(*tables(plan))


def plan_merge(
    paths: Sequence[Path],
    cuts: Sequence[int],
    bytes_per_token: float,
    tokens_per_second: float,
    exclude: Sequence[str] = (),
    min_trainable: int = 1,
    workers: int = 1,
) -> dict[str, Any]:
    """For each cut: the whole corpus and each dataset, alone, as a share, and what is left without it.

    bytes are those of hidden states at bytes_per_token, hours those of extraction at tokens_per_second.
    """
    import tempfile

    from eyas.merge.inputs import plain_inputs, token_files
    from eyas.merge.lengths import count_cuts
    from eyas.merge.options import MergeOptions

    files = token_files(plain_inputs(paths, exclude))
    MergeOptions(exclude=tuple(exclude), min_trainable=min_trainable, workers=workers).check(
        {file.dataset for file in files}
    )
    files = [file for file in files if file.dataset not in exclude]
    with tempfile.TemporaryDirectory(prefix="eyas-plan-") as scratch:
        found = count_cuts(files, cuts, min_trainable, Path(scratch), workers)

    def priced(records: int, tokens: int) -> dict[str, Any]:
        hours = tokens / tokens_per_second / 3600
        return {
            "records": records,
            "tokens": tokens,
            "bytes": int(tokens * bytes_per_token),
            "hours": round(hours, 3),
        }

    plan = []
    for cut in cuts:
        records = sum(entry[cut]["records"] for entry in found.values())
        tokens = sum(entry[cut]["tokens"] for entry in found.values())
        datasets = [
            {
                "name": name,
                **priced(entry[cut]["records"], entry[cut]["tokens"]),
                "cut_records": entry[cut]["cut_records"],
                "share_of_records": entry[cut]["records"] / max(records, 1),
                "share_of_tokens": entry[cut]["tokens"] / max(tokens, 1),
                "without": priced(records - entry[cut]["records"], tokens - entry[cut]["tokens"]),
            }
            for name, entry in found.items()
        ]
        cut_records = sum(entry[cut]["cut_records"] for entry in found.values())
        plan.append(
            {"max_seq_len": cut, **priced(records, tokens), "cut_records": cut_records, "datasets": datasets}
        )
    return {"bytes_per_token": bytes_per_token, "tokens_per_second": tokens_per_second, "cuts": plan}


def tables(plan: dict[str, Any]) -> list[Part]:
    """The plan for a terminal: the cuts, then the datasets at each cut."""
    whole = Table(
        "Every dataset, by cut", ("cut at", "records", "cut", "tokens", "hidden states", "extraction")
    )
    for entry in plan["cuts"]:
        whole.add_row(
            f"{entry['max_seq_len']:,}",
            number(entry["records"]),
            number(entry["cut_records"]),
            *_price(entry),
        )
    found: list[Part] = [whole]
    columns = ("records", "share", "tokens", "share", "without it: tokens", "hidden states", "extraction")
    for entry in plan["cuts"]:
        table = Table(f"Cut at {entry['max_seq_len']:,}", ("dataset", *columns))
        for dataset in entry["datasets"]:
            table.add_row(
                dataset["name"],
                number(dataset["records"]),
                share(dataset["share_of_records"]),
                number(dataset["tokens"]),
                share(dataset["share_of_tokens"]),
                *_price(dataset["without"]),
            )
        found.append(table)
    return found


def _price(entry: dict[str, Any]) -> tuple[str, str, str]:
    return number(entry["tokens"]), size(entry["bytes"]), duration(entry["hours"] * 3600)


def _cuts(text: str) -> list[int]:
    try:
        cuts = [int(part) for part in text.split(",")]
    except ValueError:
        cuts = []
    if not cuts or min(cuts) < 1:
        raise EyasError("--max-seq-len is no list of lengths", expected="say 4096,8192", found=text)
    return sorted(set(cuts))
