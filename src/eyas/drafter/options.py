"""Options of the train stage (recipe section `training`)."""

from __future__ import annotations

from typing import Literal

from eyas.core.errors import EyasError
from eyas.core.options import no_content, options

STAGE = "train"
VERSION = 1
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class TrainOptions:
    """How a drafter is trained. The defaults are those of a run of minutes on a CPU."""

    ttt_steps: int = 3
    """Draft steps unrolled in training; at least as many as drafts are made when serving."""
    step_decay: float = 0.8
    """Weight of step k in the loss is step_decay ** k."""
    epochs: int = 5
    """Visits of each row."""
    tokens_per_step: int = 256
    """Token budget of an optimiser step; rows are packed into it, a longer row is a step of its own."""
    learning_rate: float = 2e-3
    """Peak of the schedule: linear warm-up, then cosine."""
    warmup_steps: int = 20
    """Steps of the linear warm-up."""
    min_lr_share: float = 0.05
    """The cosine ends at this share of learning_rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averages."""
    weight_decay: float = 0.0
    """AdamW's decay; norms are never decayed."""
    clip: float = 1.0
    """Largest norm of the gradient of a step."""
    init: Literal["target", "ridge", "random"] = "target"
    """Where the weights start: the target's last layer; a closed-form fc; chance."""
    train_head: bool = False
    """Train the draft head; else it stays at the target's rows."""
    seed: int = 42
    """Order of the rows, and whatever of the initial weights is drawn."""
    threads: int = 2
    """Threads of one matrix product. In the fingerprint, because it moves the last bits."""
    walk_drafts: int = 3
    """Drafts a round in the walk over the held-out rows."""
    checkpoint_steps: int = no_content(500)
    """A checkpoint at least every so many steps."""
    checkpoint_seconds: float = no_content(60.0)
    """A checkpoint at least every so many seconds."""
    keep_last: int = no_content(2)
    """Checkpoints kept while training; the artefact holds the final one."""

    def __post_init__(self) -> None:
        for name in (
            "ttt_steps",
            "epochs",
            "tokens_per_step",
            "threads",
            "walk_drafts",
            "keep_last",
            "checkpoint_steps",
        ):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("learning_rate", "clip", "step_decay"):
            _require(getattr(self, name) > 0, name, "above 0", getattr(self, name))
        _require(0 <= self.min_lr_share <= 1, "min_lr_share", "0 to 1", self.min_lr_share)
        _require(self.warmup_steps >= 0, "warmup_steps", "at least 0", self.warmup_steps)


def _require(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        raise EyasError(
            f"`{name}` is out of range",
            expected=expected,
            found=found,
            mend=f"set training.{name} to {expected}",
        )
