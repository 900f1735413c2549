"""What the plain decoding of `eyas bench --engine hf` costs beside `model.generate` itself.

Nine pairs, alternating which comes first, on the same prompts: CPU time of `decode_plainly` (which calls `generate`
with a cache of its own and notes the first token) over CPU time of `model.generate` as a user would call it. The
limit is 1.05 for the median. The drafter's own step is timed apart, and the cost of a round by context length shows
that no round reads its prefix again.

    python benchmarks/bench/hf_overhead.py TARGET [DRAFTER]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch

from eyas.bench.decoder import decode
from eyas.bench.plain import decode_plainly
from eyas.engines.hf import HfTarget
from eyas.export.load_as import load_as_engine
from eyas.export.reading import any_engine_folder

PAIRS, TOKENS, PROMPTS, LIMIT = 9, 32, 2, 1.05
CONTEXTS = (64, 256, 1024)


def prompts(target: HfTarget, length: int, number: int) -> list[list[int]]:
    """Ids drawn evenly: the work does not depend on what they say."""
    generator = torch.Generator().manual_seed(0)
    top = target.facts.tokenizer_length
    return [torch.randint(100, top, (length,), generator=generator).tolist() for _ in range(number)]


def generated(target: HfTarget, ids: list[int]) -> list[int]:
    """`model.generate`, greedy, with nothing of ours."""
    given = torch.tensor([ids])
    with torch.inference_mode():
        made = target.model.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return made[0, len(ids) :].tolist()


def cpu(work: object) -> tuple[float, list[int]]:
    begun = time.process_time()
    tokens = work()  # type: ignore[operator]
    return time.process_time() - begun, tokens


def overhead(target: HfTarget) -> float:
    """Median of ours / theirs over the pairs, printed one by one."""
    given = prompts(target, 64, PROMPTS)
    ratios = []
    for pair in range(PAIRS + 1):
        ours = theirs = 0.0
        for ids in given:
            runs = [lambda ids=ids: decode_plainly(target, ids, TOKENS, end_ids=[]).tokens]
            runs.append(lambda ids=ids: generated(target, ids))
            order = (0, 1) if pair % 2 else (1, 0)
            took = dict(zip(order, (cpu(runs[i]) for i in order), strict=True))
            assert took[0][1] == took[1][1], "both must say the same"
            ours, theirs = ours + took[0][0], theirs + took[1][0]
        if pair:  # the first pair warms up
            ratios.append(ours / theirs)
            print(f"pair {pair}: {ours:.2f} s, generate {theirs:.2f} s, ratio {ratios[-1]:.3f}")
    return statistics.median(ratios)


def rounds(target: HfTarget, folder: Path) -> None:
    """CPU time of a round and of the drafter's part, by context length."""
    path, engine = any_engine_folder(folder)
    drafter, boundaries = load_as_engine(path, engine, target.facts)
    print("context  plain step  round (3 drafts)  of it the drafter")
    for length in CONTEXTS:
        (ids,) = prompts(target, length, 1)
        plain = decode_plainly(target, ids, TOKENS, end_ids=[])
        made = decode(target, drafter, boundaries, ids, 3, TOKENS, end_ids=[])
        count = len(made.rounds)
        print(
            f"{length:7}  {1000 * plain.spent.cpu / (TOKENS - 1):7.1f} ms  {1000 * made.spent.cpu / count:13.1f} ms"
            f"  {1000 * made.drafting / count:14.1f} ms"
        )


def main() -> int:
    target = HfTarget(Path(sys.argv[1]))
    median = overhead(target)
    print(f"median {median:.3f}, limit {LIMIT}")
    if len(sys.argv) > 2:
        rounds(target, Path(sys.argv[2]))
    return int(median > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
