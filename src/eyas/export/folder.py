"""One engine's folder: model.safetensors, config.json and the model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from safetensors.torch import save_file

from eyas.core.contract import TargetFacts
from eyas.core.files import appearing, write_whole

from .card import model_card
from .checkpoint import CONFIG, WEIGHTS, Checkpoint
from .engine_config import engine_config
from .options import ExportOptions

CARD = "README.md"


def write_folder(
    folder: Path,
    engine: str,
    checkpoint: Checkpoint,
    boundaries: list[int],
    facts: TargetFacts,
    training: dict[str, Any],
    options: ExportOptions,
) -> None:
    """Write the folder, weights last. The bytes depend on the arguments' content alone."""
    fields = engine_config(checkpoint.config, engine, boundaries, facts, checkpoint.dtype)
    ids = fields["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    card = model_card(engine, checkpoint, facts, ids, training, options.draft_tokens, options.licence)
    write_whole(folder / CARD, card.encode())
    write_whole(folder / CONFIG, orjson.dumps(fields, option=orjson.OPT_INDENT_2) + b"\n")
    state = {name: tensor.contiguous() for name, tensor in sorted(checkpoint.state.items())}
    with appearing(folder / WEIGHTS) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
