"""How fast and how small training is: python benchmarks/train/bench.py [--quick] [--json FILE]

The shape and the bars are those of the README beside this file. Every figure comes from a process of its own.
Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUDGET = 2048
RATE_ALL, RATE_60, SHARE, PEAK, WAIT = 2100, 2600, 0.40, 0.85e9, 0.03
OPTIONS = {
    "ttt_steps": 3,
    "train_head": True,
    "init": "random",
    "threads": 2,
    "walk_drafts": 1,
    "tracker": "none",
}


def packed_lengths(budget: int, packs: int, seed: int = 0) -> list[int]:
    """Rows of 120 to 900 tokens that fill every pack to the last token."""
    drawn = random.Random(seed)
    lengths: list[int] = []
    for _ in range(packs):
        left = budget
        while left > 900:
            lengths.append(drawn.randint(120, min(900, left - 120)))
            left -= lengths[-1]
        lengths.append(left)
    return lengths


class Bench:
    def __init__(self, folder: Path, epochs: int) -> None:
        self.folder, self.epochs, self.number = folder, epochs, 0

    def run(self, lengths: list[int], share: float = 1.0, **options: Any) -> dict[str, Any]:
        """Figures of training on rows of these lengths, of which `share` is answer."""
        self.number += 1
        corpus, out = self.folder / f"corpus{self.number}", self.folder / f"run{self.number}"
        _python("corpus.py", str(corpus), str(share), *map(str, lengths))
        chosen = {**OPTIONS, "tokens_per_step": BUDGET, "epochs": self.epochs, **options}
        return json.loads(_python("measure.py", str(corpus), str(out), json.dumps(chosen)).splitlines()[-1])


def _python(script: str, *arguments: str) -> str:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr}")
    return done.stdout


def bare_torch() -> int:
    """Peak RSS of a process that only imports torch."""
    text = "import torch, resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    return int(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout)


def speed(bench: Bench, packs: int) -> dict[str, Any]:
    lengths = packed_lengths(BUDGET, packs)
    return {"all terms": bench.run(lengths, 1.0), "60 % terms": bench.run(lengths, 0.6)}


def cost_over_length(bench: Bench, lengths: list[int]) -> dict[int, dict[str, Any]]:
    """One row a step, so that T is the budget."""
    return {n: bench.run([n] * 4, tokens_per_step=n, epochs=2) for n in lengths}


def memory_over_budget(bench: Bench, budgets: list[int]) -> dict[int, dict[str, Any]]:
    return {n: bench.run(packed_lengths(n, 4), tokens_per_step=n, epochs=2) for n in budgets}


def slope(peaks: dict[int, float]) -> float:
    """Bytes a token, by least squares."""
    mean_x, mean_y = sum(peaks) / len(peaks), sum(peaks.values()) / len(peaks)
    above = sum((x - mean_x) * (y - mean_y) for x, y in peaks.items())
    return above / sum((x - mean_x) ** 2 for x in peaks)


def report(found: dict[str, Any]) -> list[str]:
    """Prints the figures; the bars that are missed."""
    missed = []
    bare = found["bare_torch"]
    print(f"bare `import torch`: {bare / 1e6:.0f} MB")
    print(
        f"{'':12} {'tok/s':>7} {'GEMM':>6} {'tok/s at 200':>13} {'by CPU time':>12} {'MFLOP/tok':>10} "
        f"{'share':>6} {'by CPU':>7} {'peak MB':>8} {'less torch':>11} {'data wait':>10} {'cores busy':>11}"
    )
    for name, f in found["speed"].items():
        wall, cpu = f["wall"], f["cpu"]
        print(
            f"{name:12} {wall['tokens_per_second']:7.0f} {wall['gemm_gflops']:6.0f} "
            f"{wall['tokens_per_second_at_200']:13.0f} {cpu['tokens_per_second_at_200']:12.0f} "
            f"{f['operations_per_token'] / 1e6:10.1f} {wall['share_of_gemm']:6.2f} {cpu['share_of_gemm']:7.2f} "
            f"{f['peak_rss'] / 1e6:8.0f} {(f['peak_rss'] - bare) / 1e6:11.0f} {f['data_wait_share']:10.2%} "
            f"{f['busy']:11.0%}"
        )
        bar = RATE_ALL if name == "all terms" else RATE_60
        if wall["tokens_per_second_at_200"] < bar:
            missed.append(f"{name}: under {bar} tokens/s at 200 GFLOP/s")
        if wall["share_of_gemm"] < SHARE and name == "all terms":
            missed.append(f"{name}: under {SHARE} of the rate of the matrix product")
        if f["peak_rss"] > PEAK:
            missed.append(f"{name}: peak memory over {PEAK / 1e9} GB")
        if f["data_wait_share"] > WAIT:
            missed.append(f"{name}: waits for data {f['data_wait_share']:.1%} of the time")
    if "length" in found:
        print(
            "\none row a step, every slot a term: us of processor a token, scaled to 200 GFLOP/s; attention's share"
        )
        for n, f in found["length"].items():
            micro = 2e6 / f["cpu"]["tokens_per_second_at_200"]
            share = f["attention_operations_per_token"] / f["operations_per_token"]
            print(
                f"T = {n:5}  {micro:6.0f} us  {f['operations_per_token'] / 1e6:6.1f} MFLOP ({share:.0%} attention)  "
                f"{micro / f['operations_per_token'] * 1e6:.2f} us/MFLOP  peak {f['peak_rss'] / 1e6:.0f} MB"
            )
    if "budget" in found:
        peaks = {n: f["peak_rss"] for n, f in found["budget"].items()}
        print(
            "\npeak memory over the token budget: "
            + ", ".join(f"{n}: {p / 1e6:.0f} MB" for n, p in peaks.items())
        )
        print(f"slope {slope(peaks) / 1e3:.1f} KB a token")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="speed alone, fewer steps")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eyas-bench-") as folder:
        bench = Bench(Path(folder), epochs=2 if options.quick else 4)
        found: dict[str, Any] = {"bare_torch": bare_torch(), "speed": speed(bench, packs=6)}
        if not options.quick:
            found["length"] = cost_over_length(bench, [512, 1024, 2048, 4096])
            found["budget"] = memory_over_budget(bench, [1024, 2048, 4096, 8192])
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    missed = report(found)
    for line in missed:
        print("MISSED", line)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
