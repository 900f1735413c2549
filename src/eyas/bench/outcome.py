"""The result of a benchmark: cells, what they mean, and what they were measured on."""

from __future__ import annotations

from typing import Any

from eyas.core.contract import target_source
from eyas.export.record import read_record

from . import surroundings
from .advice import break_even, break_even_verdict, pooled, serve_with, verdict
from .cells import NOT_MEASURED
from .hints import Suspects, hints, is_poor
from .planned import shape_of
from .work import BenchJob, Work

MEANING = (
    "accept_length: (tokens - requests) / rounds, pooled over requests; the target's own token of each round is"
    " counted, the first token of an answer and tokens past its end are not. tok_s: all streams together, decoding"
    " alone. round_cost: accept_length / speedup, the accept length that breaks even."
)


def outcome(work: Work) -> dict[str, Any]:
    job, turns = work.job, work.turns
    cells, details = turns.cells, turns.details
    record = read_record(work.folder) if work.folder is not None else None
    found = []
    poor = None if job.random_weights else is_poor(cells, record)
    if poor is not None:
        suspects = Suspects(
            folder=work.folder,
            engine="sglang" if poor.engine == "sglang" else work.folder_engine,
            facts=work.facts,
            cell=poor,
            detail=details[cells.index(poor)],
            dtype=job.dtype or (None if poor.engine != "hf" else "float32"),
            method_set=job.engine in ("hf", "vllm"),
            trial=work.trial,
        )
        found = [hint.plain() for hint in hints(suspects)]
    longest = max((detail.longest for detail in details), default=0)
    if record is not None and record.trained_length and longest > record.trained_length:
        work.notes.append(
            f"requests of up to {longest} tokens, the longest trained row has {record.trained_length}: see by_context"
        )
    if any(detail.foreign for detail in details):
        work.notes.append(
            "a server's counters moved without our requests: its figures are not of these prompts alone"
        )
    result: dict[str, Any] = {
        "cells": [cell.plain() for cell in cells],
        "details": [
            {
                "tok_s_stream": detail.tok_s_stream,
                "baseline_tok_s_stream": detail.baseline_tok_s_stream,
                "longest": detail.longest,
                "accept_length_by_context": detail.by_context,
                "differing": detail.differing,
                "foreign_requests": detail.foreign,
            }
            for detail in details
        ],
        "pooled": [
            {"concurrency": streams, "draft_tokens": drafts, **of}
            for (streams, drafts), of in pooled(cells).items()
        ],
        "speedup": None if any(cell.speedup is not None for cell in cells) else NOT_MEASURED,
        "serve_with": {str(streams): drafts for streams, drafts in serve_with(cells).items()},
        "verdict": verdict(cells),
        "hints": found,
        "notes": work.notes,
        "meaning": MEANING,
        "clock": "cpu" if job.engine == "hf" and job.threads == 1 else "wall",
        "target": _target(work),
        "flags": flags(job),
        "versions": {**surroundings.versions(), "engine": work.engine_version or job.engine},
        "hardware": surroundings.hardware(),
    }
    if job.random_weights:
        rows = break_even(cells)  # how poor random weights are is no advice on what to serve with
        result |= {"serve_with": {}, "verdict": break_even_verdict(rows), "break_even": rows}
        result["planned_drafter"] = shape_of(work).plain()
    return result


def _target(work: Work) -> dict[str, Any]:
    """What tells targets apart, without paths; the fingerprint is the one that artefacts carry."""
    facts = work.facts
    return {
        "fingerprint": target_source(work.job.target).fingerprint,
        "model_type": facts.model_type,
        "num_layers": facts.num_layers,
        "hidden_size": facts.hidden_size,
        "vocab_size": facts.vocab_size,
    }


def flags(job: BenchJob) -> dict[str, Any]:
    """The settings, without paths."""
    return {
        "prompts": [path.stem for path in job.prompts],
        "engine": job.engine,
        "draft_tokens": list(job.draft_tokens),
        "concurrency": list(job.concurrency),
        "max_tokens": job.max_tokens,
        "temperature": job.temperature,
        "limit": job.limit,
        "dtype": job.dtype,
        "threads": job.threads,
        "tree": job.tree,
        "random_weights": job.random_weights,
    }
