"""The two maps between draft and target ids, as they stand in a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eyas.core.errors import EyasError
from eyas.drafter.config import DrafterConfig


def with_maps(state: dict[str, Tensor], config: DrafterConfig, file: Path) -> dict[str, Tensor]:
    """`state` with d2t (int64 offsets) and t2d (bool); a full vocabulary needs none and gets plain ones.

    A smaller vocabulary without a map is refused: an engine would take draft ids for the first target ids.
    """
    draft, target = config.draft_vocab_size, config.vocab_size
    if "d2t" not in state:
        if draft < target:
            raise EyasError(
                "the draft vocabulary is reduced but the file holds no map",
                file=file,
                expected=f"d2t, {draft} offsets into {target} target ids",
                found="no tensor d2t",
                mend="put the map into the weights, or train again with `eyas train`",
            )
        state = {**state, "d2t": torch.zeros(draft, dtype=torch.int64)}
    state = {**state, "d2t": state["d2t"].to(torch.int64)}
    ids = state["d2t"] + torch.arange(len(state["d2t"]))
    if (
        len(ids) != draft
        or int(ids.min()) < 0
        or int(ids.max()) >= target
        or not bool((ids.diff() > 0).all())
    ):
        raise EyasError(
            "d2t does not give rising target ids",
            file=file,
            expected=f"{draft} offsets target id - draft id, ids below {target}",
            found=f"{len(ids)} entries, ids {ids[:4].tolist()}... (absolute ids stored as offsets look so)",
            mend="write the map as offsets: d2t[i] = target id of i, less i",
        )
    marked = torch.zeros(target, dtype=torch.bool)
    marked[ids] = True
    if "t2d" in state and not torch.equal(state["t2d"].to(torch.bool), marked):
        raise EyasError(
            "t2d does not mark the ids that d2t gives",
            file=file,
            expected=f"{draft} of {target} marks, at the target ids",
            found=f"{int(state['t2d'].sum())} of {len(state['t2d'])} marks",
            mend="make both maps from one list of ids",
        )
    return {**state, "t2d": marked}


def suspicion(state: dict[str, Tensor], config: DrafterConfig) -> str | None:
    """A warning if a reduced vocabulary is just the first ids, which is what a lost map looks like."""
    if config.draft_vocab_size < config.vocab_size and not bool(state["d2t"].any()):
        return (
            f"the draft vocabulary is the first {config.draft_vocab_size} target ids, which is what a lost map"
            " looks like: every token of another id will be missed"
        )
    return None
