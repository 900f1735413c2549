"""One measured run of the train stage, alternating with a matrix product; prints one JSON object.

Run as `python measure.py CORPUS OUT OPTIONS` with OPTIONS a JSON object of TrainOptions. The step that is
timed is the user's: the loader, forward, backward, clipping, optimiser and log, with the matrix product
taken out. Times are of the wall and of the processor; medians over all steps but the first two.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from operations import count
from torch.nn.functional import linear

from eyas.core.artefact import Out
from eyas.core.contract import target_source
from eyas.core.manifest import Source
from eyas.drafter import stage
from eyas.drafter.options import TrainOptions
from eyas.drafter.trainer import Trainer

ROWS, INNER, COLUMNS, REPEATS = 2048, 512, 688, 40
WARM = 2


class Clock:
    """Wraps Trainer._step: what passes between two matrix products is one step."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, int, float, float]] = []
        self.products: list[tuple[float, float]] = []
        self.waited = 0.0
        self._begun: tuple[float, float] | None = None
        self._left = torch.randn(ROWS, INNER)
        self._right = torch.randn(COLUMNS, INNER)

    def around(self, step: Any) -> Any:
        def timed(trainer: Trainer, *arguments: Any) -> dict[str, Any]:
            device = trainer.drafter.d2t.device
            self._left, self._right = self._left.to(device), self._right.to(device)
            begun = self._begun or _now()
            line = step(trainer, *arguments)
            ended = _now()
            operations = self._operations(trainer, line["rows"])
            self.steps.append((ended[0] - begun[0], ended[1] - begun[1], line["tokens"], *operations))
            self.waited = trainer.loader.waited
            self._product()
            self._begun = _now()
            return line

        return timed

    def _operations(self, trainer: Trainer, rows: list[int]) -> tuple[float, float]:
        batch = trainer._build(rows)
        assert batch is not None
        found = count(trainer.drafter.config, batch, trainer.options.train_head)
        return found.total, found.attention

    def _product(self) -> None:
        begun = _now()
        for _ in range(REPEATS):
            linear(self._left, self._right)
        ended = _now()
        self.products.append((ended[0] - begun[0], ended[1] - begun[1]))


def _now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def figures(clock: Clock, threads: int) -> dict[str, Any]:
    steps, products = clock.steps[WARM:], clock.products[WARM:]
    product = 2.0 * ROWS * INNER * COLUMNS * REPEATS
    found: dict[str, Any] = {"steps": len(steps), "tokens": sum(step[2] for step in steps)}
    for place, name in enumerate(("wall", "cpu")):
        share = threads if name == "cpu" else 1  # processor seconds of all threads -> seconds
        rate = statistics.median(step[2] * share / step[place] for step in steps)
        gemm = statistics.median(product * share / time_[place] for time_ in products) / 1e9
        work = statistics.median(
            step[3] / step[place] / (product / time_[place])
            for step, time_ in zip(steps, products, strict=True)
        )
        found[name] = {
            "tokens_per_second": rate,
            "gemm_gflops": gemm,
            "tokens_per_second_at_200": statistics.median(
                step[2] / step[place] * 200e9 / (product / time_[place])
                for step, time_ in zip(steps, products, strict=True)
            ),
            "share_of_gemm": work,
        }
    found["operations_per_token"] = sum(s[3] for s in steps) / sum(s[2] for s in steps)
    found["attention_operations_per_token"] = sum(s[4] for s in steps) / sum(s[2] for s in steps)
    found["data_wait_share"] = clock.waited / sum(step[0] for step in clock.steps)
    found["busy"] = sum(s[1] for s in steps) / sum(s[0] for s in steps) / threads
    return found


def main() -> None:
    corpus, out, options = Path(sys.argv[1]), Path(sys.argv[2]), TrainOptions(**json.loads(sys.argv[3]))
    torch.set_num_threads(options.threads)
    clock = Clock()
    Trainer._step = clock.around(Trainer._step)  # type: ignore[method-assign]
    inputs = {
        "extract": Source(corpus / "extract", "e" * 32),
        "vocab": Source(corpus / "vocab", "v" * 32),
        "target": target_source(corpus / "target"),
    }
    manifest = stage.run(options, inputs, Out(out))
    found = figures(clock, options.threads)
    found["attention"] = manifest.actual["attention"]
    found["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if torch.cuda.is_available():
        found["peak_gpu"] = torch.cuda.max_memory_allocated()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
