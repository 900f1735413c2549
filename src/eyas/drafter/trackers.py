"""Where the curves of a run go, by name: TensorBoard's files beside the checkpoints, wandb, trackio.

What they show is also in log.jsonl; they may be switched off without loss.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from eyas.core.errors import EyasError

TENSORBOARD = "tensorboard"
"""Name of the tracker, and of the folder that its event files lie in."""


class Tracker(Protocol):
    def log(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Untracked:
    def log(self, step: int, figures: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class _TensorBoard:
    def __init__(self, folder: Path, begun_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder / TENSORBOARD, purge_step=begun_at)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self._writer.add_scalar(name, figure, step)

    def close(self) -> None:
        self._writer.close()


class _Service:
    """wandb and trackio, which speaks as wandb does."""

    def __init__(self, module: Any, name: str, options: Mapping[str, Any]) -> None:
        self._module = module
        module.init(project="eyas", name=name, config=dict(options), resume="allow")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._module.log(dict(figures), step=step)

    def close(self) -> None:
        self._module.finish()


def open_tracker(kind: str, folder: Path, begun_at: int, options: Mapping[str, Any]) -> Tracker:
    """The tracker of that kind; EyasError if its package is missing.

    folder: of the artefact, whose name is the run's name. begun_at: the first step of this session.
    """
    if kind == "none" or (kind == "auto" and importlib.util.find_spec(TENSORBOARD) is None):
        return Untracked()
    package = TENSORBOARD if kind == "auto" else kind
    if importlib.util.find_spec(package) is None:
        raise EyasError(
            f"training.tracker is {kind}, but the package is not installed",
            expected=package,
            mend=f"pip install {package}, or set training.tracker to auto or none",
        )
    if package == TENSORBOARD:
        return _TensorBoard(folder, begun_at)
    return _Service(importlib.import_module(package), folder.name, options)
