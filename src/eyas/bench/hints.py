"""Why a drafter accepts next to nothing: the usual causes, likeliest first, each checked where it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.core.contract import TargetFacts
from eyas.export.check import CheckReport, check
from eyas.export.record import ExportRecord, read_record

from .cells import Cell, Detail

LEAST = 1.05
"""An accept length below this is that of a drafter that is not read as it was trained."""
LEAST_OF_PREDICTED = 0.5

Trial = Callable[[dict[str, Any]], float | None]
"""Accept length of the reference decoder on a few prompts with something changed: `shift` of the aux boundaries or the
name of a norm `flag` to turn; {} changes nothing. None where it cannot be built."""


@dataclass(frozen=True)
class Hint:
    """checked: None where nothing could be looked at; else whether this cause was found."""

    cause: str
    found: bool | None
    detail: str

    def plain(self) -> dict[str, Any]:
        return {"cause": self.cause, "found": self.found, "detail": self.detail}


_TEMPLATE = Hint(
    "chat template",
    False,
    "prompts were sent as ids made by the target's own template; if training text was rendered by another one, the"
    " accept length on held-out rows of training tells",
)


@dataclass(frozen=True, kw_only=True)
class Suspects:
    """What is known of a poor cell. method_set: Eyas started the server or decoded itself, so the method is right."""

    folder: Path | None
    engine: str
    facts: TargetFacts
    cell: Cell
    detail: Detail
    dtype: str | None
    method_set: bool
    trial: Trial | None


def is_poor(cells: Sequence[Cell], record: ExportRecord | None) -> Cell | None:
    """The first cell whose accept length is below 1.05, or below half of what training predicted beyond 1."""
    for cell in cells:
        if cell.accept_length is None:
            continue
        if cell.accept_length < LEAST:
            return cell
        predicted = record.accept_length if record is not None else None
        same = record is not None and record.drafts == cell.draft_tokens
        if predicted is not None and same and cell.accept_length < LEAST_OF_PREDICTED * predicted:
            return cell
    return None


def hints(suspects: Suspects) -> list[Hint]:
    """In the order of likelihood."""
    folder = suspects.folder
    report = check(folder, suspects.engine, suspects.facts) if folder is not None else None
    record = read_record(folder) if folder is not None else None
    return [
        _method(suspects),
        _names(report),
        _layer_ids(suspects, report),
        _flags(suspects, report),
        _TEMPLATE,
        _context(suspects, record),
        _dtype(suspects, record),
    ]


def _method(suspects: Suspects) -> Hint:
    if suspects.method_set:
        return Hint("method name", False, "Eyas itself serves it as EAGLE-3")
    exact = suspects.cell.accept_length == 1.0
    detail = "start the server with method eagle3 (vLLM) or algorithm EAGLE3 (SGLang)"
    return Hint(
        "method name", True if exact else None, f"accept length exactly 1.00: {detail}" if exact else detail
    )


def _names(report: CheckReport | None) -> Hint:
    if report is None:
        return Hint("tensor names", None, "give the folder with --drafter, or run `eyas export --check`")
    faults = [
        f for f in report.faults if any(word in f for word in ("ignored", "missing", "refused", "random"))
    ]
    return Hint("tensor names", bool(faults), "; ".join(faults) or "every tensor is used or shared")


def _layer_ids(suspects: Suspects, report: CheckReport | None) -> Hint:
    texts = [
        t
        for t in (report.faults + report.warnings if report else [])
        if "boundaries" in t or "layer ids" in t
    ]
    if texts:
        return Hint("layer ids", True, texts[0])
    if suspects.trial is None:
        return Hint(
            "layer ids",
            None if report is None else False,
            "they are those of the record, or none can be held",
        )
    return _best_trial(
        suspects.trial, "layer ids", [({"shift": s}, f"boundaries shifted by {s:+d}") for s in (-1, 1)]
    )


def _flags(suspects: Suspects, report: CheckReport | None) -> Hint:
    texts = [t for t in (report.faults if report else []) if "norm" in t]
    if texts:
        return Hint("norm flags", True, texts[0])
    if suspects.trial is None:
        return Hint("norm flags", None, "compare norm_before_residual, norm_output and fc_norm with training")
    turned = [({"flag": name}, f"{name} turned") for name in ("norm_before_residual", "norm_output")]
    return _best_trial(suspects.trial, "norm flags", turned)


def _best_trial(trial: Trial, cause: str, changes: Sequence[tuple[dict[str, Any], str]]) -> Hint:
    """Does a change give a clearly longer accept length than none?"""
    plain = trial({}) or 1.0
    tried = [(tau, text) for change, text in changes if (tau := trial(change)) is not None]
    if not tried:
        return Hint(cause, None, "no change could be tried")
    tau, text = max(tried)
    if tau > plain + 0.1 * (plain - 1) + 0.03:
        return Hint(cause, True, f"with {text} the accept length is {tau:.2f} instead of {plain:.2f}")
    return Hint(cause, False, f"no change does better than {plain:.2f} on a few prompts")


def _context(suspects: Suspects, record: ExportRecord | None) -> Hint:
    longest, limit = suspects.detail.longest, suspects.facts.max_position_embeddings
    trained = record.trained_length if record is not None else None
    if trained is None:
        return Hint(
            "context length", None, f"the longest request has {longest} tokens, of training nothing is known"
        )
    if longest > trained:
        return Hint(
            "context length", True, f"requests of {longest} tokens, the longest trained row has {trained}"
        )
    return Hint("context length", False, f"at most {longest} tokens, trained to {trained}, limit {limit}")


def _dtype(suspects: Suspects, record: ExportRecord | None) -> Hint:
    if record is None or suspects.dtype is None:
        return Hint(
            "number type", None, "serve target and drafter in the type that the states were extracted in"
        )
    same = record.dtype == suspects.dtype
    return Hint(
        "number type", not same, f"served in {suspects.dtype}, the drafter is stored in {record.dtype}"
    )
