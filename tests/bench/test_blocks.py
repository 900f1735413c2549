"""Blocks of a benchmark that was stopped are not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eyas.bench.blocks import Blocks
from eyas.bench.counters import Counters
from eyas.bench.measured import Measured, Sample
from eyas.bench.prompt_sets import Request
from eyas.core.units import UnitLog

REQUESTS = [Request("set", "a", [1, 2]), Request("set", "b", [3])]


@dataclass
class Counting:
    """A system whose every answer tells when it was given."""

    draft_tokens: int = 3
    engine: str = "vllm"
    calls: list[int] = field(default_factory=list)

    def measure(
        self, requests: Sequence[Request], concurrency: int, max_tokens: int, temperature: float
    ) -> Measured:
        self.calls.append(concurrency)
        at = float(len(self.calls))
        samples = [Sample(r.id, len(r.ids), [7, 8, 9], at, at + 0.1, 2, [1, 0]) for r in requests]
        return Measured(samples, Counters(4, 12, 2, (2, 0, 0), 6), foreign=True)


def test_a_block_measured_before_a_stop_comes_back_as_it_was(tmp_path: Path) -> None:
    first = Blocks(UnitLog(tmp_path, "units.jsonl")).measure(Counting(), REQUESTS, 2, 8, 0.0)
    system, again = Counting(), Blocks(UnitLog(tmp_path, "units.jsonl"))
    assert again.measure(system, REQUESTS, 2, 8, 0.0) == first
    assert system.calls == [], "what was paid for is measured again"
    assert again.reused == 1


def test_the_plain_block_after_a_drafted_one_is_not_the_one_before_it(tmp_path: Path) -> None:
    blocks = Blocks(UnitLog(tmp_path, "units.jsonl"))
    plain = Counting(draft_tokens=0)
    before, after = (blocks.measure(plain, REQUESTS, 1, 8, 0.0) for _ in range(2))
    assert before.samples[0].begun != after.samples[0].begun, (
        "a change of the machine would meet one block alone"
    )


@pytest.mark.parametrize("other", [{"streams": 2}, {"max_tokens": 9}, {"temperature": 0.5}, {"drafts": 1}])
def test_a_block_of_another_setting_is_measured(tmp_path: Path, other: dict[str, float]) -> None:
    asked = {"streams": 1, "max_tokens": 8, "temperature": 0.0, "drafts": 3}
    calls = []
    for setting in (asked, {**asked, **other}):
        system = Counting(draft_tokens=int(setting["drafts"]))
        blocks = Blocks(UnitLog(tmp_path, "units.jsonl"))
        blocks.measure(
            system, REQUESTS, int(setting["streams"]), int(setting["max_tokens"]), setting["temperature"]
        )
        calls += system.calls
    assert len(calls) == 2, "figures of one setting would stand under another"


def test_times_of_blocks_add_up_whatever_clock_they_were_measured_on() -> None:
    made = Measured([Sample("a", 1, [1, 2], 0.0, 1.0)])
    made.add(Measured([Sample("b", 1, [1, 2], 0.5, 1.25)]))
    assert made.seconds == 1.75, "after a restart the clock begins anew, and the time would be counted once"
