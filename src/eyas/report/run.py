"""The end of a run: the chain, the accept length beside its floors, and one sentence in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eyas.core.manifest import Manifest

from .merge import table as merge_table
from .table import Line, Part, Table
from .text import figure, number, share, size

Ran = Sequence[tuple[str, Manifest, bool]]
"""(stage, manifest, reused) of each stage of a run, in order."""

_FROM_BENCH = (
    "accept_length",
    "accept_length_by_dataset",
    "floors",
    "decoded_prompts",
    "decoded_accept_length",
    "decoded_walk",
    "identical_outputs",
    "speedup",
    "round_cost",
    "acceptance_by_position",
    "greedy_differences",
    "verdict",
)


def as_json(ran: Ran) -> dict[str, Any]:
    """The run as one object; a reused run gives the same but for `reused`."""
    by_stage = {name: manifest for name, manifest, _ in ran}
    result: dict[str, Any] = {}
    if "bench" in by_stage:
        result.update({key: by_stage["bench"].actual[key] for key in _FROM_BENCH})
    if "vocab" in by_stage:
        result["coverage"] = by_stage["vocab"].actual["coverage_heldout"]
    if "train" in by_stage:
        result["accuracy"] = by_stage["train"].actual["accuracy"]
    peaks = [manifest.run["peak_rss_mb"] for _, manifest, _ in ran]
    result["peak_rss_mb"] = {
        "largest": max(peak["largest"] for peak in peaks),
        "together": max(peak["together"] for peak in peaks),
    }
    result["cpu_seconds"] = round(sum(manifest.run["cpu_seconds"] for _, manifest, _ in ran), 1)
    result["stages"] = [
        {
            "name": name,
            "seconds": manifest.run["seconds"],
            "rows": manifest.actual.get("rows"),
            "tokens": manifest.actual.get("tokens"),
            "bytes": manifest.total_bytes,
            "reused": reused,
        }
        for name, manifest, reused in ran
    ]
    return result


def parts(ran: Ran) -> list[Part]:
    """The report of a run for a terminal: its tables, then what they mean."""
    said = verdict(ran)
    return [*tables(ran).values(), *([Line(said)] if said else [])]


def verdict(ran: Ran) -> str | None:
    """The bench's sentence; None if the run did not come so far."""
    return next((manifest.actual["verdict"] for name, manifest, _ in ran if name == "bench"), None)


def tables(ran: Ran) -> dict[str, Table]:
    """chain, merge, accuracy, accept_length, decoding; those whose stages have run."""
    by_stage = {name: manifest for name, manifest, _ in ran}
    found = {"chain": _chain(ran)}
    if "merge" in by_stage:
        found["merge"] = merge_table(by_stage["merge"])
    if "train" in by_stage:
        found["accuracy"] = _accuracy(by_stage["train"].actual["accuracy"])
    if "bench" in by_stage:
        found["accept_length"] = _accept_length(by_stage)
        found["decoding"] = _decoding(by_stage["bench"].actual)
    return found


def accept_lengths(by_stage: dict[str, Manifest]) -> list[tuple[str, float | None, float | None]]:
    """(dataset, accept length by the walk, share of its labels that the drafter can emit at all), the pool last."""
    bench = by_stage["bench"].actual
    coverage = by_stage["vocab"].actual["coverage_heldout"] if "vocab" in by_stage else {}
    rows = [(name, tau, coverage.get(name)) for name, tau in bench["accept_length_by_dataset"].items()]
    return [*rows, ("all rows, pooled", bench["accept_length"], coverage.get("all"))]


def floors(by_stage: dict[str, Manifest]) -> dict[str, float]:
    """Accept length of what needs no training, by name."""
    return {
        f"floor: {name.replace('_', ' ')}": tau for name, tau in by_stage["bench"].actual["floors"].items()
    }


def stage_object(manifest: Manifest, folder: Path) -> dict[str, Any]:
    """What `--json` prints for a stage that was run by a command of its own."""
    return {
        "stage": manifest.stage,
        "out": str(folder),
        "fingerprint": manifest.fingerprint,
        "counts": manifest.counts,
        "predicted": manifest.predicted,
        "actual": manifest.actual,
    }


def stage_line(name: str, manifest: Manifest, reused: bool) -> str:
    """One line for a stage that is complete."""
    parts = [
        f"{manifest.actual[key]:,} {key}"
        for key in ("rows", "tokens")
        if manifest.actual.get(key) is not None
    ]
    parts.append(size(manifest.total_bytes))
    parts.append("reused" if reused else f"{manifest.run['seconds']:.1f} s")
    return f"  {name:<9} {', '.join(parts)}"


def _chain(ran: Ran) -> Table:
    table = Table(
        "The chain", ("stage", "rows", "tokens", "predicted", "bytes", "seconds", "CPU s", ""), left=(0, 3, 7)
    )
    for name, manifest, reused in ran:
        table.add_row(
            name,
            number(manifest.actual.get("rows")),
            number(manifest.actual.get("tokens")),
            _prediction(manifest),
            size(manifest.total_bytes),
            f"{manifest.run['seconds']:.1f}",
            f"{manifest.run['cpu_seconds']:.1f}",
            "reused" if reused else "",
        )
    return table


def _prediction(manifest: Manifest) -> str:
    """What was predicted for the figure that a reader wants to compare, and how it went."""
    predicted, actual = manifest.predicted, manifest.actual
    if "tokens_at_most" in predicted:
        return f"{predicted['rows']:,} rows, at most {predicted['tokens_at_most']:,} tokens"
    parts = [f"{predicted[key]:,} {key}" for key in ("rows", "tokens") if predicted.get(key) is not None]
    exact = all(
        predicted[key] == actual.get(key) for key in ("rows", "tokens") if predicted.get(key) is not None
    )
    return ", ".join(parts) + (" (exact)" if parts and exact else "")


def _accuracy(accuracy: dict[str, Any]) -> Table:
    table = Table(
        "Accuracy on held-out rows, out-of-vocabulary targets count as misses",
        ("draft step", "all slots", "of", "if all before were right", "of"),
    )
    columns = ("unconditional", "slots", "conditional", "reached")
    for step, (plain, slots, conditional, reached) in enumerate(
        zip(*(accuracy[name] for name in columns), strict=True)
    ):
        table.add_row(str(step + 1), figure(plain), number(slots), figure(conditional), number(reached))
    return table


def _accept_length(by_stage: dict[str, Manifest]) -> Table:
    drafts = by_stage["bench"].actual["accept_length_drafts"]
    table = Table(
        f"Accept length by the walk over the held-out rows, {drafts} drafts",
        ("dataset", "accept length", "coverage"),
    )
    *datasets, pooled = accept_lengths(by_stage)
    for name, tau, coverage in datasets:
        table.add_row(name, figure(tau), share(coverage))
    table.add_section()
    table.add_row(pooled[0], figure(pooled[1]), share(pooled[2]))
    for name, tau in floors(by_stage).items():
        table.add_row(name, figure(tau), "")
    return table


def _decoding(bench: dict[str, Any]) -> Table:
    title = f"Decoding {bench['decoded_prompts']} held-out prompts against plain greedy, outputs "
    title += "identical" if bench["identical_outputs"] else "NOT identical"
    table = Table(
        title, ("drafts", "accept length", "the walk's", "accepted by position", "speed-up", "round cost")
    )
    for drafts in bench["speedup"]:
        table.add_row(
            drafts,
            figure(bench["accept_length_decoded"][drafts]),
            figure(bench["walk_decoded"][drafts]),
            " ".join(f"{share:.2f}" for share in bench["acceptance_by_position"][drafts]),
            figure(bench["speedup"][drafts], 2),
            figure(bench["round_cost"][drafts], 2),
        )
    return table
