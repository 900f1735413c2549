"""The training loop: packed steps in parts, evaluation, checkpoints, resume, on one process or several."""

from __future__ import annotations

import contextlib
import copy
import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from eyas.core.errors import EyasError, StoppedEarly
from eyas.core.options import content
from eyas.core.progress import Progress
from eyas.states.store import StateStore

from .batch import Batch, make_batch
from .checkpoint import (
    Position,
    fault,
    folder_name,
    load_checkpoint,
    newest_checkpoint,
    read_facts,
    read_position,
    remove_old,
    save_checkpoint,
)
from .development import Best, better, evaluate
from .device import on_device
from .distributed import Parallel, World
from .loader import Loader
from .log import TrainLog
from .loss import BatchLoss, TeacherHead
from .network import Drafter
from .optimizer import Optimizer, learning_rate
from .options import TrainOptions
from .schedule import Schedule, divide
from .signals import end_early, stop_flag
from .step import TrainStep
from .step_sums import StepSums, curves, figures, notes
from .trackers import Tracker, Untracked, open_tracker

LOG = "log.jsonl"


@dataclass
class Trainer:
    """Trains `drafter` on the rows of `store`; everything that a resume needs lies under `folder`.

    development: the split that chooses the best checkpoint, if there is one. run_name: whose checkpoints these are.
    curves_folder: the folder of TensorBoard's files, None for no tracker.
    """

    drafter: Drafter
    store: StateStore
    teacher: TeacherHead
    options: TrainOptions
    folder: Path
    development: StateStore | None = None
    world: World = field(default_factory=World)
    run_name: str = "plain"
    curves_folder: Path | None = None

    def __post_init__(self) -> None:
        self.t2d_V = self.drafter.t2d.cpu()
        self.plan = Schedule.of(self.store, self.t2d_V, self.options)
        step = TrainStep(self.drafter, self.teacher, self.options)
        self.attention = step.attention
        self.parallel = Parallel(step, self.drafter, self.world, self.options.parallel)
        self.optimizer = Optimizer(self.drafter, self.options)
        self.loader = Loader(self._build, self.options.loader_workers)
        self.position = Position()
        self.best: Best | None = None
        self._last_rows: list[int] = []

    def run(self) -> Position:
        """Train to the end of the plan, from the newest whole checkpoint of this run if there is one.

        Raises StoppedEarly after SIGTERM and KeyboardInterrupt after Ctrl-C, a checkpoint written, and
        StoppedEarly too if the rows end before the plan; EyasError when loss or gradient is no number.
        """
        self._resume()
        tracker: Tracker = Untracked()
        if self.world.leads and self.curves_folder is not None:
            tracker = open_tracker(
                self.options.tracker, self.curves_folder, self.position.step, content(self.options)
            )
        with contextlib.closing(tracker), stop_flag() as stop, self._progress() as progress:
            self._loop(tracker, stop, progress)
        if self.position.step != self.plan.num_steps:
            raise StoppedEarly(
                "training ended before its planned steps",
                expected=self.plan.num_steps,
                found=self.position.step,
                mend="give the same command again to go on",
            )
        return self.position

    def chosen(self) -> tuple[Drafter, Position]:
        """The drafter of the best checkpoint where a development split chose one, else as it is now. Every rank
        must call this."""
        if self.best is None or self.best.step == self.position.step:
            return self._as_judged(), self.position
        drafter = self.parallel.plain()
        path = self.folder / folder_name(self.best.step)
        state = load_checkpoint(path, drafter)
        ending = "/average"
        averages = {name.removesuffix(ending): t for name, t in state.items() if name.endswith(ending)}
        drafter.load_state_dict(averages, strict=False)
        position = read_position(path)
        self.world.wait()  # rank 0 removes the checkpoints when it publishes
        return drafter, position

    def _as_judged(self) -> Drafter:
        """The drafter that would be exported if training ended now: averaged where that is asked for. Every rank
        must call this."""
        drafter = self.parallel.plain()
        averages = self.optimizer.averages()
        if not averages:
            return drafter
        averaged = copy.deepcopy(drafter).requires_grad_(False)
        averaged.load_state_dict(averages, strict=False)
        return averaged

    def _loop(self, tracker: Tracker, stop: list[int], progress: Progress | None) -> None:
        log = TrainLog(self.folder / LOG, self.position.step) if self.world.leads else None
        saved = begun = time.monotonic()
        batches = self.loader.batches(part for rows, _ in self._ahead() for part in self._parts(rows))
        with contextlib.closing(log) if log else contextlib.nullcontext(), contextlib.closing(batches):
            for rows, after in self._ahead():
                line = self._step(rows, after, batches)
                is_best = self._evaluate(after, line)
                waiting = self.loader.waited / max(time.monotonic() - begun, 1e-9)
                if log is not None:
                    log.add(line)
                    tracker.log(self.position.step, curves(line, waiting))
                if progress is not None:
                    progress.advance(line["tokens"], **notes(line, waiting))
                late = time.monotonic() - saved >= self.options.checkpoint_seconds
                number, late = self._agreed(stop, late)
                if number or late or is_best or self.position.step % self.options.checkpoint_steps == 0:
                    if log is not None:
                        log.sync()
                    self._save()
                    saved = time.monotonic()
                if number:
                    end_early(number)
            if log is not None:
                log.sync()

    def _ahead(self) -> Iterator[tuple[list[int], Position]]:
        return self.plan.ahead(self.position)

    def _parts(self, rows: list[int]) -> list[list[int]]:
        """This rank's parts of a step; none where the step has no term."""
        if not any(self.plan.term_counts(rows)):
            return []
        budget, size = self.options.tokens_per_forward, self.world.size
        return divide(rows, self.plan.lengths, budget, size)[self.world.rank :: size]

    def _build(self, rows: list[int]) -> Batch | None:
        """None where none of the rows has a term."""
        if not any(self.plan.term_counts(rows)):
            return None
        options, t2d_V = self.options, self.t2d_V
        batch = make_batch([self.store[row] for row in rows], t2d_V, options.ttt_steps, options.preset)
        return on_device(batch, self.drafter.d2t.device)

    def _step(self, rows: list[int], after: Position, batches: Iterator[Batch | None]) -> dict[str, Any]:
        counts = self.plan.term_counts(rows)
        step, skipped = self.position.step, self.position.skipped
        rate = learning_rate(step, self.plan.num_steps, self.options)
        line = {
            "step": step,
            "epoch": after.epoch,
            "rows": rows,
            "tokens": self.plan.tokens(rows),
            "rate": rate,
        }
        if any(counts):
            sums = self._backward(rows, counts, batches)
            norm = self.optimizer.clip()
            if not (math.isfinite(sums.loss) and math.isfinite(norm)):
                raise self._no_number(step, rows, sums)
            self.optimizer.step(rate)
            line |= figures(sums, counts) | {"gradient_norm": norm}
        else:
            skipped += 1
            unknown: list[None] = [None] * len(counts)
            line |= {"loss": None, "terms": counts, "cross_entropy": unknown, "accuracy": unknown}
            line |= {"conditional": unknown, "expected_length": None, "gradient_norm": None}
        self.position = replace(after, step=step + 1, skipped=skipped)
        self._last_rows = rows
        return line

    def _backward(self, rows: list[int], counts: list[int], batches: Iterator[Batch | None]) -> StepSums:
        sums = StepSums.zero(len(counts), len(rows))
        parts, num_tokens = self._parts(rows), self.plan.tokens(rows)
        for number, part in enumerate(parts):
            batch = next(batches)
            with self.parallel.part(last=number == len(parts) - 1):
                result: BatchLoss = self.parallel(batch, counts, num_tokens)
                result.loss.backward()
            if batch is not None:
                before = sums.loss
                sums.add(batch, result)
                if math.isfinite(before) and not math.isfinite(sums.loss):
                    for row in part:
                        sums.spoiled[rows.index(row)] += 1
        return sums.over(self.world)

    def _evaluate(self, after: Position, line: dict[str, Any]) -> bool:
        """Walk the development split where that is due; whether the weights are the best so far."""
        if not self.development:
            return False
        every = self.options.evaluate_steps
        due = self.position.step % every == 0 if every else self.plan.ends_epoch(after)
        if not due and self.position.step != self.plan.num_steps:
            return False
        drafter = self._as_judged()
        self._require_numbers(drafter)
        found = None
        if self.world.leads:
            found = evaluate(drafter, self.development, self.options.walk_drafts)
        found = self.world.told(found)
        line["development"] = found
        before, self.best = self.best, better(self.best, self.position.step, found)
        return self.best is not before

    def _agreed(self, stop: list[int], late: bool) -> tuple[int, bool]:
        """(stop signal, 0 if none; whether a checkpoint is due by rank 0's clock), the same on every rank."""
        if self.world.size == 1:
            return stop[0] if stop else 0, late
        asked = [float(number in stop) for number in (signal.SIGINT, signal.SIGTERM)]
        interrupts, terms, lateness = self.world.summed([*asked, float(late and self.world.leads)])
        return signal.SIGINT if interrupts else signal.SIGTERM if terms else 0, bool(lateness)

    def _progress(self) -> contextlib.AbstractContextManager[Progress | None]:
        if not self.world.leads:
            return contextlib.nullcontext()
        whole = sum(self.plan.lengths) * self.options.epochs
        return Progress("train", whole, "tokens", done=whole - self.plan.tokens_ahead(self.position))

    def _resume(self) -> None:
        found = newest_checkpoint(self.folder, self.run_name) if self.world.leads else None
        found = self.world.told(found)
        if found is None:
            return
        drafter = self.parallel.plain()
        self.optimizer.load(load_checkpoint(found, drafter))
        self.parallel.load(drafter)
        self.position = read_position(found)
        best = read_facts(found).get("best")
        self.best = Best(**best) if best else None
        if self.best and (reason := fault(self.folder / folder_name(self.best.step))):
            if self.world.leads:
                print(f"train: the best checkpoint so far is lost: {reason}", file=sys.stderr, flush=True)
            self.best = None

    def _save(self) -> None:
        drafter = self.parallel.plain()
        self._require_numbers(drafter)
        facts = {"run": self.run_name, "best": asdict(self.best) if self.best else None}
        holds_state = self.world.leads or self.parallel.is_sharded
        state = self.optimizer.state() if holds_state else None
        path = self.folder / folder_name(self.position.step)
        world = self.world if self.parallel.is_sharded else World(self.world.rank, 1)
        if holds_state:
            save_checkpoint(path, drafter, state, self.position, facts, world)
        if self.world.leads:
            protected = frozenset([self.best.step] if self.best else [])
            remove_old(self.folder, self.options.keep_last, self.run_name, protected)
        self.world.wait()

    def _require_numbers(self, drafter: Drafter) -> None:
        """Weights that are no numbers are never written, and never the best."""
        if not all(p.isfinite().all() for p in drafter.parameters()):
            raise self._no_number(self.position.step - 1, self._last_rows, None)

    def _no_number(self, step: int, rows: list[int], sums: StepSums | None) -> EyasError:
        spoiled = [row for row, times in zip(rows, sums.spoiled, strict=True) if times] if sums else []
        named = [self.store[row] for row in spoiled or rows]
        return EyasError(
            f"the loss, its gradient or a weight is no number at step {step}",
            record=", ".join(f"{row.dataset}/{row.id}" for row in named),
            expected="finite numbers",
            mend="lower training.learning_rate, or look at these rows' states with `eyas verify`",
        )
