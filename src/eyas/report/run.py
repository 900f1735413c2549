"""The end of a run: the chain, the accept length beside its floors, and one sentence in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.core.manifest import Manifest

from .merge import table as merge_table
from .text import escape, figure, new_table, number, share, size

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def tables(ran: Ran) -> list[RenderableType]:
    """The report of a run for a terminal."""
    by_stage = {name: manifest for name, manifest, _ in ran}
    parts: list[RenderableType] = [_chain(ran)]
    if "merge" in by_stage:
        parts.append(merge_table(by_stage["merge"]))
    if "train" in by_stage:
        parts.append(_accuracy(by_stage["train"].actual))
    if "bench" in by_stage:
        bench = by_stage["bench"].actual
        parts += [_accept_length(bench, by_stage), _decoding(bench), bench["verdict"]]
    return parts


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


def _chain(ran: Ran) -> RenderableType:
    table = new_table("The chain", "stage", "rows", "tokens", "predicted", "bytes", "seconds", "CPU s", "")
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


def _accuracy(train: dict[str, Any]) -> RenderableType:
    table = new_table(
        "Accuracy on held-out rows, out-of-vocabulary targets count as misses",
        "draft step",
        "all slots",
        "if all before were right",
    )
    for step, (plain, conditional) in enumerate(
        zip(train["accuracy"]["unconditional"], train["accuracy"]["conditional"], strict=True)
    ):
        table.add_row(str(step + 1), figure(plain), figure(conditional))
    return table


def _accept_length(bench: dict[str, Any], by_stage: dict[str, Manifest]) -> RenderableType:
    """By dataset and pooled, beside the floors and the share of labels that the drafter can emit at all."""
    coverage = by_stage["vocab"].actual["coverage_heldout"] if "vocab" in by_stage else {}
    table = new_table(
        "Accept length by the walk over the held-out rows, 3 drafts", "dataset", "accept length", "coverage"
    )
    for name, tau in bench["accept_length_by_dataset"].items():
        table.add_row(escape(name), figure(tau), share(coverage.get(name)))
    table.add_section()
    table.add_row("all rows, pooled", figure(bench["accept_length"]), share(coverage.get("all")))
    for name, tau in bench["floors"].items():
        table.add_row(f"floor: {name.replace('_', ' ')}", figure(tau), "")
    return table


def _decoding(bench: dict[str, Any]) -> RenderableType:
    title = f"Decoding {bench['decoded_prompts']} held-out prompts against plain greedy, outputs "
    title += "identical" if bench["identical_outputs"] else "NOT identical"
    table = new_table(
        title, "drafts", "accept length", "the walk's", "accepted by position", "speed-up", "round cost"
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
