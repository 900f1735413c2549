"""The export stage: the final checkpoint of a train artefact -> one folder an engine.

inputs: `train` (a train artefact, one of its `step-*` folders, or a folder with a drafter's config.json and
model.safetensors), `target` (its folder), and `vocab` where the counts that the draft vocabulary was chosen
by are to be held against it. The unit is an engine's folder. Everything written is byte-deterministic.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from eyas.core.artefact import Out, Workbench, open_workbench
from eyas.core.contract import TargetFacts, read_facts
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, Source, measured

from .checkpoint import CONFIG, WEIGHTS, Checkpoint, final_step, read_checkpoint, training_of
from .coverage import LEAST_OF_BEST, Coverage, measure_for, read_counts
from .engine_config import require_servable
from .folder import CARD, write_folder
from .layer_ids import require_engine, to_engine
from .options import STAGE, VERSION, ExportOptions
from .record import RECORD


def run(options: ExportOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Export for each engine of the options. EyasError for a checkpoint that an engine would misread."""
    if not options.engines:
        raise EyasError("there is no engine to export for", mend="name one in `export.engines`")
    for engine in options.engines:
        require_engine(engine)
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            return bench
        training = training_of(inputs["train"].path)
        facts = read_facts(inputs["target"].path)
        step = final_step(inputs["train"].path)
        checkpoint = read_checkpoint(step, facts)
        coverage = _coverage(checkpoint, inputs.get("vocab"), facts)
        warnings = list(checkpoint.warnings)
        for engine in options.engines:
            warnings += require_servable(checkpoint.config, engine, step / CONFIG)
        size = sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.state.values())
        bench.predict({"rows": len(options.engines), "tensor_bytes": size * len(options.engines)})
        manifest = _export(bench, options, checkpoint, facts, training, warnings, coverage)
    for warning in warnings:
        print(f"{STAGE}: mind: {warning}", file=sys.stderr)
    return manifest


def _export(
    bench: Workbench,
    options: ExportOptions,
    checkpoint: Checkpoint,
    facts: TargetFacts,
    training: dict[str, Any],
    warnings: list[str],
    coverage: Coverage | None,
) -> Manifest:
    counts, outputs = Counts(), []
    boundaries = _boundaries(training, options, checkpoint, facts)
    for engine in options.engines:
        counts.keep()
        if bench.units.done(engine) is None:
            folder = bench.folder / engine
            write_folder(folder, engine, checkpoint, boundaries, facts, training, options, coverage)
            bench.units.finish(engine, f"{engine}/{WEIGHTS}")
        outputs += [measured(bench.folder, f"{engine}/{name}") for name in (CARD, CONFIG, RECORD, WEIGHTS)]
    actual = {
        "rows": counts.rows_out,
        "boundaries": boundaries,
        "layer_ids": {engine: to_engine(engine, boundaries, facts) for engine in options.engines},
        "dtype": checkpoint.dtype,
        "parameters": checkpoint.parameters,
        "draft_vocab_size": checkpoint.config.draft_vocab_size,
        "max_position_embeddings": max(
            checkpoint.config.max_position_embeddings, facts.max_position_embeddings
        ),
        "trained_length": training["actual"].get("trained_length"),
        "coverage": coverage.share if coverage else None,
        "best_coverage": coverage.best_share if coverage else None,
        "warnings": warnings,
    }
    return bench.publish(outputs, counts, actual)


def _coverage(checkpoint: Checkpoint, vocab: Source | None, facts: TargetFacts) -> Coverage | None:
    """Coverage of the draft vocabulary; EyasError if it cannot have been chosen by these counts."""
    if vocab is None:
        return None
    target_ids = checkpoint.state["d2t"] + torch.arange(len(checkpoint.state["d2t"]))
    coverage = measure_for(facts, target_ids, read_counts(vocab.path))
    if not coverage.is_enough:
        raise EyasError(
            "the draft vocabulary is not the one that these counts give",
            file=vocab.path,
            expected=f"coverage of at least {LEAST_OF_BEST:g} of the best possible",
            found=str(coverage),
            mend="give the vocab artefact that the drafter was trained with, or train again",
        )
    return coverage


def _boundaries(
    training: dict[str, Any], options: ExportOptions, checkpoint: Checkpoint, facts: TargetFacts
) -> list[int]:
    """Those of training; for a bare checkpoint those of the options, or the usual three."""
    known = training["actual"].get("boundaries")
    if known is not None and options.boundaries is not None and list(options.boundaries) != list(known):
        raise EyasError(
            "the drafter was trained on other aux boundaries",
            expected=known,
            found=list(options.boundaries),
            mend="leave `boundaries` out: they are in the train manifest",
        )
    boundaries = list(known or options.boundaries or facts.default_boundaries)
    if len(boundaries) != checkpoint.config.num_aux:
        raise EyasError(
            "the number of aux boundaries is not the drafter's",
            expected=checkpoint.config.num_aux,
            found=boundaries,
            mend="give the boundaries that it was trained on",
        )
    return boundaries
