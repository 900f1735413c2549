"""One engine's folder: model.safetensors, config.json, eyas.json and the model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from safetensors.torch import save_file

from eyas.core.contract import TargetFacts
from eyas.core.files import appearing, write_whole
from eyas.drafter.target_weights import TargetWeights

from .card import model_card
from .checkpoint import CONFIG, WEIGHTS, Checkpoint
from .coverage import Coverage
from .engine_config import FLAGS, engine_config
from .layer_ids import to_engine
from .options import ExportOptions
from .record import ExportRecord
from .tensors import stored_for, wants_embedding

CARD = "README.md"


def write_folder(
    folder: Path,
    engine: str,
    checkpoint: Checkpoint,
    boundaries: list[int],
    facts: TargetFacts,
    training: dict[str, Any],
    options: ExportOptions,
    coverage: Coverage | None = None,
) -> None:
    """Write the folder, weights last. The bytes depend on the arguments' content alone.

    training: `options` and `actual` of the train manifest. coverage: that of the draft vocabulary, if the
    counts that it was chosen by are known.
    """
    fields = engine_config(
        checkpoint.config, engine, boundaries, facts, checkpoint.dtype, options.draft_tokens
    )
    actual = training["actual"]
    record = ExportRecord(
        engine=engine,
        boundaries=boundaries,
        dtype=checkpoint.dtype,
        flags={name: getattr(checkpoint.config, name) for name in FLAGS},
        trained_length=actual.get("trained_length"),
        accept_length=actual.get("accept_length"),
        drafts=actual.get("drafts"),
        coverage=coverage.share if coverage else None,
        best_coverage=coverage.best_share if coverage else None,
    )
    ids = to_engine(engine, boundaries, facts)
    card = model_card(engine, checkpoint, facts, ids, training, record, options)
    write_whole(folder / CARD, card.encode())
    write_whole(folder / CONFIG, orjson.dumps(fields, option=orjson.OPT_INDENT_2) + b"\n")
    record.write(folder)
    embedding = TargetWeights(facts.folder).embedding() if wants_embedding(engine) else None
    state = stored_for(engine, checkpoint.state, checkpoint.config, embedding)
    with appearing(folder / WEIGHTS) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
