"""The training loop: packed steps, checkpoints, resume. One process, one device."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from eyas.core.errors import EyasError, StoppedEarly
from eyas.core.progress import Progress
from eyas.states.store import StateRow, StateStore

from .accuracy import Accuracy
from .batch import Batch, make_batch
from .checkpoint import (
    Position,
    folder_name,
    load_checkpoint,
    newest_checkpoint,
    read_position,
    remove_old,
    save_checkpoint,
)
from .log import TrainLog
from .loss import BatchLoss, TeacherHead, batch_loss
from .network import Drafter
from .optimizer import Optimizer, learning_rate
from .options import TrainOptions
from .pack import pack_epoch
from .rope import Rotary
from .unroll import unroll

LOG = "log.jsonl"


@dataclass(frozen=True)
class Plan:
    """The rows of every step of every epoch."""

    epochs: list[list[list[int]]]

    @classmethod
    def of(cls, store: StateStore, options: TrainOptions) -> Plan:
        budget, seed = options.tokens_per_step, options.seed
        return cls([pack_epoch(store.lengths, budget, seed, epoch) for epoch in range(options.epochs)])

    @property
    def num_steps(self) -> int:
        return sum(len(steps) for steps in self.epochs)

    def ahead(self, position: Position) -> Iterator[tuple[list[int], Position]]:
        """(rows, the position after them) of every step that is still to do."""
        for epoch in range(position.epoch, len(self.epochs)):
            consumed = 0
            for rows in self.epochs[epoch]:
                consumed += len(rows)
                if epoch == position.epoch and consumed <= position.rows:
                    continue
                yield rows, Position(epoch=epoch, rows=consumed)


class Trainer:
    """Trains `drafter` on the rows of `store`; everything that a resume needs lies under `folder`."""

    def __init__(
        self, drafter: Drafter, store: StateStore, teacher: TeacherHead, options: TrainOptions, folder: Path
    ) -> None:
        self.drafter, self.store, self.teacher = drafter, store, teacher
        self.options, self.folder = options, folder
        self.plan = Plan.of(store, options)
        self.optimizer = Optimizer(drafter, options)
        self.rotary = Rotary(drafter.config)
        self.position = Position()

    def run(self) -> Position:
        """Train to the end of the plan, from the newest whole checkpoint if there is one.

        Raises StoppedEarly after SIGTERM and KeyboardInterrupt after Ctrl-C, a checkpoint written; EyasError
        when loss or gradient is no number.
        """
        self._resume()
        log = TrainLog(self.folder / LOG, self.position.step)
        tokens_left = sum(self.store.lengths) * self.options.epochs
        saved = time.monotonic()
        with (
            contextlib.closing(log),
            _stop_flag() as stop,
            Progress("train", tokens_left, "tokens", done=self._tokens_done()) as progress,
        ):
            for rows, after in self.plan.ahead(self.position):
                line = self._step(rows, after)
                log.add(line)
                progress.advance(
                    line["tokens"], loss=_short(line["loss"]), accuracy=_short(*line["accuracy"])
                )
                late = time.monotonic() - saved >= self.options.checkpoint_seconds
                if stop or late or self.position.step % self.options.checkpoint_steps == 0:
                    log.sync()
                    self._save()
                    saved = time.monotonic()
                if stop:
                    _stop(stop[0])
            log.sync()
        return self.position

    def _step(self, rows: list[int], after: Position) -> dict[str, Any]:
        batch = make_batch([self.store[row] for row in rows], self.drafter.t2d, self.options.ttt_steps)
        counts = batch.term_counts
        step, skipped = self.position.step, self.position.skipped
        rate = learning_rate(step, self.plan.num_steps, self.options)
        line = {"step": step, "epoch": after.epoch, "rows": rows, "tokens": batch.num_tokens, "rate": rate}
        if any(counts):
            loss = self._backward(batch, counts)
            norm = self.optimizer.clip()
            if not (math.isfinite(loss.loss.item()) and math.isfinite(norm)):
                raise self._no_number(step, rows)
            self.optimizer.step(rate)
            line |= self._figures(batch, counts, loss) | {"gradient_norm": norm}
        else:
            skipped += 1
            line |= {"loss": None, "terms": counts, "cross_entropy": [None] * len(counts)}
            line |= {
                "accuracy": [None] * len(counts),
                "conditional": [None] * len(counts),
                "gradient_norm": None,
            }
        self.position = replace(after, step=step + 1, skipped=skipped)
        return line

    def _backward(self, batch: Batch, counts: list[int]) -> BatchLoss:
        outputs = unroll(self.drafter, self.rotary, batch)
        loss = batch_loss(self.drafter, outputs, batch, self.teacher, self.options.step_decay, counts)
        loss.loss.backward()
        return loss

    def _figures(self, batch: Batch, counts: list[int], loss: BatchLoss) -> dict[str, Any]:
        accuracy = Accuracy(len(counts))
        accuracy.add(loss.hits, [step.keep_S for step in batch.steps])
        means = [total / n if n else None for total, n in zip(loss.cross_entropy, counts, strict=True)]
        return {
            "loss": loss.loss.item(),
            "terms": counts,
            "cross_entropy": means,
            "accuracy": accuracy.unconditional,
            "conditional": accuracy.conditional,
        }

    def _resume(self) -> None:
        found = newest_checkpoint(self.folder)
        if found is None:
            return
        self.optimizer.load(load_checkpoint(found, self.drafter))
        self.position = read_position(found)

    def _save(self) -> None:
        path = self.folder / folder_name(self.position.step)
        save_checkpoint(path, self.drafter, self.optimizer.state(), self.position, {})
        remove_old(self.folder, self.options.keep_last)

    def _tokens_done(self) -> int:
        ahead = sum(self.store.lengths[row] for rows, _ in self.plan.ahead(self.position) for row in rows)
        return sum(self.store.lengths) * self.options.epochs - ahead

    def _no_number(self, step: int, rows: list[int]) -> EyasError:
        names = [f"{row.dataset}/{row.id}" for row in map(self._row, rows)]
        return EyasError(
            f"the loss or its gradient is no number at step {step}",
            record=", ".join(names),
            expected="finite numbers",
            mend="lower training.learning_rate, or look at these rows' states with `eyas verify`",
        )

    def _row(self, index: int) -> StateRow:
        return self.store[index]


@contextlib.contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Matrix products on `number` threads, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _stop_flag() -> Iterator[list[int]]:
    """A list that gets the number of a stop signal; a second Ctrl-C ends the process at once."""
    stop: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, _: FrameType | None) -> None:
        stop.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise StoppedEarly(
        "training was stopped; a checkpoint is written", mend="give the same command again to go on"
    )


def _short(*values: float | None) -> str:
    return " ".join("-" if value is None else f"{value:.3f}" for value in values)
