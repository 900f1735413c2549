"""What a merge costs beside bare parsing, on the reference workload.

    python benchmarks/merge/bench.py --maker ../shared/bench/make_merge_corpus.py [--scale 1.0] [--rounds 5]
        [--realtime]

Every round runs all ways one after the other, each in a process of its own with a cold digest cache and a warm page
cache. Ratios are taken within a round, so that other work on the machine hits both sides, and their median is
printed with the lowest and the highest. CPU time is user and system time with children; memory is the kernel's peak
of the largest process. The corpus goes to a temporary folder and is removed afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PARSE = """
import sys, orjson
for file in sys.argv[1:]:
    with open(file, "rb") as lines:
        for line in lines:
            orjson.loads(line)
"""
COPY = """
import sys
with open(sys.argv[1], "wb") as out:
    for file in sys.argv[2:]:
        with open(file, "rb") as lines:
            while block := lines.read(1 << 20):
                out.write(block)
"""
MERGE = "import typer; from eyas.merge.command import merge_command; typer.run(merge_command)"
EXCLUDED = "A1"


@dataclass(frozen=True)
class Cost:
    wall: float
    cpu: float
    peak: float
    """MiB."""
    output: int
    """Bytes."""


class Bench:
    def __init__(self, corpus: Path, scratch: Path) -> None:
        self.corpus, self.scratch = corpus, scratch
        files = sorted(corpus.glob("*/tokenized_data.jsonl"))
        self.files = [str(file) for file in files if file.parent.name != EXCLUDED]

    def ways(self) -> dict[str, Callable[[], Cost]]:
        return {
            "orjson.loads of each kept line": lambda: self._run(PARSE, *self.files),
            "copy of the kept files": lambda: self._run(COPY, str(self.scratch / "out"), *self.files),
            "eyas merge": lambda: self.merge(),
            "eyas merge --workers 2": lambda: self.merge("--workers", "2"),
            "eyas merge --dedup": lambda: self.merge("--dedup"),
            "eyas merge --output-format parquet": lambda: self.merge("--output-format", "parquet"),
        }

    def merge(self, *options: str) -> Cost:
        return self._run(
            MERGE,
            str(self.corpus),
            "--out",
            str(self.scratch / "out"),
            "--exclude",
            EXCLUDED,
            "--json",
            *options,
        )

    def _run(self, code: str, *arguments: str) -> Cost:
        self._clear()
        environment = {**os.environ, "EYAS_CACHE": str(self.scratch / "cache"), "OPENBLAS_NUM_THREADS": "1"}
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        if status:
            raise SystemExit(f"{arguments} failed")
        out = self.scratch / "out"
        written = sum(
            file.stat().st_size for file in (out.rglob("*") if out.is_dir() else [out]) if file.is_file()
        )
        self._clear()
        return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, written)

    def _clear(self) -> None:
        shutil.rmtree(self.scratch / "cache", ignore_errors=True)
        out = self.scratch / "out"
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--maker", type=Path, required=True, help="script that makes the corpus")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--realtime", action="store_true", help="keep other work off the cores (root)")
    parser.add_argument("--folder", type=Path, help="where the temporary corpus goes")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    with tempfile.TemporaryDirectory(prefix="eyas-bench-", dir=options.folder) as folder:
        scratch = Path(folder)
        bench = Bench(make(options.maker, scratch / "corpus", options.scale), scratch)
        small = Bench(make(options.maker, scratch / "small", options.scale / 10), scratch)
        rounds = [{name: way() for name, way in bench.ways().items()} for _ in range(options.rounds)]
        print(table(rounds))
        growth = statistics.median(r["eyas merge"].peak for r in rounds) - small.merge().peak
        print(
            f"\npeak memory at scale {options.scale:g} over scale {options.scale / 10:g}: {growth:+.0f} MiB"
        )
        print(f"wall, two workers over one: {ratio(rounds, 'eyas merge --workers 2', 'eyas merge', 'wall')}")
        packed = "eyas merge --output-format parquet"
        print(f"CPU time, Parquet over JSON lines: {ratio(rounds, packed, 'eyas merge', 'cpu')}")
        print(f"bytes, Parquet over JSON lines: {ratio(rounds, packed, 'eyas merge', 'output')}")
        load = os.getloadavg()
        print(f"load of the machine over the last 5 minutes: {load[1]:.1f} on {os.cpu_count()} cores")


def make(maker: Path, folder: Path, scale: float) -> Path:
    subprocess.run(
        [sys.executable, str(maker), "--out", str(folder), "--scale", str(scale)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder


def table(rounds: list[dict[str, Cost]]) -> str:
    base = next(iter(rounds[0]))
    lines = [
        f"| way | CPU s | wall s | CPU / {base} | wall / the same | peak MiB | output MB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in rounds[0]:
        costs = [costs[name] for costs in rounds]
        lines.append(
            f"| {name} | {middle([cost.cpu for cost in costs])} | {middle([cost.wall for cost in costs])} "
            f"| {ratio(rounds, name, base, 'cpu')} | {ratio(rounds, name, base, 'wall')} "
            f"| {max(cost.peak for cost in costs):.0f} | {costs[0].output / 1e6:.1f} |"
        )
    return "\n".join(lines)


def ratio(rounds: list[dict[str, Cost]], name: str, base: str, figure: str) -> str:
    return middle([getattr(costs[name], figure) / getattr(costs[base], figure) for costs in rounds])


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
