"""The account of a merge for a terminal and as JSON: what came in, what is kept, and why the rest is not."""

from __future__ import annotations

from typing import Any, NamedTuple

from eyas.core.manifest import Manifest

from .table import Line, Part, Table
from .text import number, share, size

_COUNTS = ("records_in", "records_kept", "tokens_in", "tokens_kept", "trainable_tokens", "cut_records")


_EXAMPLES = 3


class Step(NamedTuple):
    """One step from what was predicted to what came out."""

    what: str
    records: int
    tokens: int


def as_json(
    manifest: Manifest, expect_records: int | None = None, expect_tokens: int | None = None
) -> dict[str, Any]:
    """The account as one object; `explained` leads from the prediction to what was kept, step by step."""
    actual = manifest.actual
    return {
        **{field: actual[field] for field in _COUNTS},
        "dropped": actual["dropped"],
        "datasets": actual["datasets"],
        "excluded": actual["excluded"],
        "predicted": prediction(manifest, expect_records, expect_tokens),
        "explained": [step._asdict() for step in explained(manifest, expect_records, expect_tokens)],
        "examples": actual["examples"],
        "notes": actual["notes"],
        "order": actual["order"],
        "fingerprint": manifest.fingerprint,
        "outputs": [output.plain() for output in manifest.outputs],
        "seconds": manifest.run["seconds"],
        "cpu_seconds": manifest.run["cpu_seconds"],
        "peak_rss_mb": manifest.run["peak_rss_mb"],
    }


def prediction(
    manifest: Manifest, expect_records: int | None = None, expect_tokens: int | None = None
) -> dict[str, Any]:
    """What was expected of the corpus: the user's figure if there is one, else the sample's."""
    said = manifest.run.get("expected", {})
    records = expect_records if expect_records is not None else said.get("records")
    tokens = expect_tokens if expect_tokens is not None else said.get("tokens")
    predicted = manifest.predicted
    by_user = [name for name, value in (("records", records), ("tokens", tokens)) if value is not None]
    return {
        "from": predicted["from"] if len(by_user) < 2 else "the user",
        "by_user": by_user,
        "records": predicted["rows"] if records is None else records,
        "tokens": predicted["tokens"] if tokens is None else tokens,
    }


def explained(
    manifest: Manifest, expect_records: int | None = None, expect_tokens: int | None = None
) -> list[Step]:
    """From the prediction to what was kept; the steps between add up to the difference."""
    actual = manifest.actual
    expected = prediction(manifest, expect_records, expect_tokens)
    source = expected["from"]
    if expected["by_user"] and source != "the user":
        source = f"{', '.join(expected['by_user'])}: the user; else {source}"
    steps = [
        Step(f"predicted ({source})", expected["records"], expected["tokens"]),
        Step(
            "the inputs hold more, or fewer",
            actual["records_in"] - expected["records"],
            actual["tokens_in"] - expected["tokens"],
        ),
        Step(f"cut at {manifest.options['max_seq_len']:,}", 0, -actual["tokens_cut"]),
    ]
    for reason, count in actual["dropped"].items():
        steps.append(Step(reason, -count, -actual["dropped_tokens"].get(reason, 0)))
    steps.append(Step("kept", actual["records_kept"], actual["tokens_kept"]))
    return steps


def table(manifest: Manifest) -> Table:
    """A row a dataset, and their total."""
    actual = manifest.actual
    columns = ("role", "records in", "kept", "at the cap", "cut", "tokens in", "kept", "labels", "share")
    shown = Table("The corpus", ("dataset", *columns, "dropped"), left=(0, 1, 10))
    for entry in actual["datasets"]:
        shown.add_row(entry["name"], entry["role"], *_figures(entry, actual["tokens_kept"]))
    for entry in actual["excluded"]:
        shown.add_row(
            entry["name"], "excluded", *[""] * (len(columns) - 1), f"{size(entry['bytes'])} not read"
        )
    shown.add_section()
    shown.add_row("all", "", *_figures(actual, actual["tokens_kept"]))
    return shown


def _figures(entry: dict[str, Any], tokens_kept: int) -> list[str]:
    fields = (
        "records_in",
        "records_kept",
        "records_at_cap",
        "cut_records",
        "tokens_in",
        "tokens_kept",
        "trainable_tokens",
    )
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in entry["dropped"].items())
    return [
        *(number(entry[field]) for field in fields),
        share(entry["tokens_kept"] / max(tokens_kept, 1)),
        dropped,
    ]


def parts(
    manifest: Manifest, expect_records: int | None = None, expect_tokens: int | None = None
) -> list[Part]:
    """The whole report for a terminal."""
    found: list[Part] = [table(manifest)]
    steps = Table("Predicted against actual", ("", "records", "tokens"))
    for i, step in enumerate(explained(manifest, expect_records, expect_tokens)):
        first = i == 0 or step.what == "kept"
        steps.add_row(step.what, *(_signed(value, first) for value in (step.records, step.tokens)))
    found.append(steps)
    if manifest.actual["examples"]:
        found.append(_examples(manifest.actual["examples"]))
    found += [Line(f"note: {note}") for note in manifest.actual["notes"]]
    written = ", ".join(
        f"{output.file} {output.rows:,} rows {size(output.bytes)}"
        for output in manifest.outputs
        if output.rows is not None
    )
    spent = f"{manifest.run['seconds']:.1f} s, {manifest.run['peak_rss_mb']['largest']} MiB"
    found.append(Line(f"{written}; {spent}"))
    return found


def _examples(examples: dict[str, Any]) -> Table:
    from eyas.merge.reasons import MEANING

    shown = Table("The first lines dropped", ("reason", "where", "found"), left=(0, 1, 2))
    for reason, places in examples.items():
        for place in places[:_EXAMPLES]:
            where = f"{place['dataset']}/{place['file']}:{place['line']}"
            shown.add_row(f"{reason}: {MEANING[reason]}", where, place["found"])
    return shown


def _signed(value: int, is_total: bool) -> str:
    return f"{value:,}" if is_total or not value else f"{value:+,}"
