"""What a step adds up over its parts and ranks, and the forms in which it is told: log line, progress, curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .accuracy import Accuracy
from .batch import Batch
from .distributed import World
from .loss import BatchLoss


@dataclass
class StepSums:
    """The sums of one step.

    spoiled: for each row of the step, in how many parts with a loss that is no number it was.
    """

    accuracy: Accuracy
    loss: float
    cross_entropy: list[float]
    spoiled: list[float]

    @classmethod
    def zero(cls, num_steps: int, num_rows: int) -> StepSums:
        return cls(Accuracy(num_steps), 0.0, [0.0] * num_steps, [0.0] * num_rows)

    def add(self, batch: Batch, result: BatchLoss) -> None:
        self.loss += result.loss.item()
        self.cross_entropy = [a + b for a, b in zip(self.cross_entropy, result.cross_entropy, strict=True)]
        self.accuracy.add(result.hits, [step.keep_S for step in batch.steps])

    def over(self, world: World) -> StepSums:
        """The sums of all ranks."""
        if world.size == 1:
            return self
        num_steps = len(self.cross_entropy)
        flat = [self.loss, *self.cross_entropy, *self.accuracy.flat(), *self.spoiled]
        total = world.summed([float(value) for value in flat])
        tables, spoiled = total[1 + num_steps : 1 + 5 * num_steps], total[1 + 5 * num_steps :]
        return StepSums(Accuracy.from_flat(tables), total[0], total[1 : 1 + num_steps], spoiled)


def figures(sums: StepSums, counts: list[int]) -> dict[str, Any]:
    means = [total / n if n else None for total, n in zip(sums.cross_entropy, counts, strict=True)]
    return {
        "loss": sums.loss,
        "terms": counts,
        "cross_entropy": means,
        "accuracy": sums.accuracy.unconditional,
        "conditional": sums.accuracy.conditional,
        "expected_length": sums.accuracy.expected_length,
    }


def notes(line: dict[str, Any], waiting: float) -> dict[str, str]:
    return {
        "loss": _short(line["loss"]),
        "accuracy": _short(*line["accuracy"]),
        "expected length": _short(line["expected_length"]),
        "waiting for data": f"{waiting:.1%}",
    }


def curves(line: dict[str, Any], waiting: float) -> dict[str, float]:
    """The figures of a log line by name; those that are not known are left out."""
    figures = {name: line[name] for name in ("loss", "rate", "gradient_norm", "expected_length")}
    for name in ("cross_entropy", "accuracy", "conditional"):
        figures |= {f"{name}/{k}": value for k, value in enumerate(line[name])}
    if "development" in line:
        figures["development/accept_length"] = line["development"]["accept_length"]
    return {name: value for name, value in figures.items() if value is not None} | {"waiting": waiting}


def _short(*values: float | None) -> str:
    return " ".join("-" if value is None else f"{value:.3f}" for value in values)
