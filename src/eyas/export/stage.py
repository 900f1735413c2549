"""The export stage: the final checkpoint of a train artefact -> one folder an engine.

inputs: `train` (a train artefact, or a checkpoint folder made by hand beside a manifest), `target` (its
folder). The unit is an engine's folder. Everything written is byte-deterministic.
"""

from __future__ import annotations

import sys
from typing import Any

from eyas.core.artefact import Out, Workbench, open_workbench
from eyas.core.contract import TargetFacts, read_facts
from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.manifest import Manifest, Source, measured, require_manifest

from .checkpoint import CONFIG, WEIGHTS, Checkpoint, final_step, read_checkpoint
from .engine_config import require_servable
from .folder import CARD, write_folder
from .layer_ids import require_engine, to_engine
from .options import STAGE, VERSION, ExportOptions


def run(options: ExportOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Export for each engine of the options. EyasError for a checkpoint that an engine would misread."""
    if not options.engines:
        raise EyasError("there is no engine to export for", mend="name one in `export.engines`")
    for engine in options.engines:
        require_engine(engine)
    with open_workbench(STAGE, VERSION, options, inputs, out) as bench:
        if isinstance(bench, Manifest):
            return bench
        train = require_manifest(inputs["train"].path, "train")
        facts = read_facts(inputs["target"].path)
        step = final_step(inputs["train"].path)
        checkpoint = read_checkpoint(step, facts)
        warnings = list(checkpoint.warnings)
        for engine in options.engines:
            warnings += require_servable(checkpoint.config, engine, step / CONFIG)
        size = sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.state.values())
        bench.predict({"rows": len(options.engines), "tensor_bytes": size * len(options.engines)})
        manifest = _export(bench, options, checkpoint, facts, train, warnings)
    for warning in warnings:
        print(f"{STAGE}: mind: {warning}", file=sys.stderr)
    return manifest


def _export(
    bench: Workbench,
    options: ExportOptions,
    checkpoint: Checkpoint,
    facts: TargetFacts,
    train: Manifest,
    warnings: list[str],
) -> Manifest:
    counts, outputs = Counts(), []
    boundaries = list(train.actual["boundaries"])
    training: dict[str, Any] = {"options": train.options, "actual": train.actual}
    for engine in options.engines:
        counts.keep()
        if bench.units.done(engine) is None:
            write_folder(bench.folder / engine, engine, checkpoint, boundaries, facts, training, options)
            bench.units.finish(engine, f"{engine}/{WEIGHTS}")
        outputs += [measured(bench.folder, f"{engine}/{name}") for name in (CARD, CONFIG, WEIGHTS)]
    actual = {
        "rows": counts.rows_out,
        "boundaries": boundaries,
        "layer_ids": {engine: to_engine(engine, boundaries, facts) for engine in options.engines},
        "dtype": checkpoint.dtype,
        "parameters": checkpoint.parameters,
        "draft_vocab_size": checkpoint.config.draft_vocab_size,
        "max_position_embeddings": facts.max_position_embeddings,
        "warnings": warnings,
    }
    return bench.publish(outputs, counts, actual)
