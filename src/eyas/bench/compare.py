"""Baseline and drafter on the same prompts, in turns, so that a change of the machine meets both.

Where both are up at once, one stream is measured in turns prompt by prompt, several streams in blocks A-B-A: plain,
drafted, plain. Where they are not, the plain blocks stand before and after all drafted ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.engines.template import ChatTemplate

from .blocks import Blocks
from .cells import Cell, Detail, make_cell
from .measured import Measured
from .prompt_sets import Question, Request, first_requests, later_requests
from .systems import System

Place = tuple[str, int]
"""Set and concurrency."""


@dataclass
class Workload:
    """The prompts of all sets. Prompts of later turns come from the first system that is asked, so that all systems
    get the same."""

    sets: dict[str, list[Question]]
    template: ChatTemplate
    max_tokens: int
    temperature: float
    blocks: Blocks = field(default_factory=Blocks)
    _requests: dict[str, list[Request]] = field(default_factory=dict)

    def requests(self, name: str, system: System, concurrency: int) -> list[Request]:
        if name not in self._requests:
            questions = self.sets[name]
            fresh = first_requests(questions, self.template)
            found, answers = list(fresh), dict[str, list[int]]()
            for turn in range(1, max((len(q.turns) for q in questions), default=1)):
                replies = self.measure(system, fresh, concurrency)
                answers |= {sample.id: sample.tokens for sample in replies.samples}
                fresh = later_requests(questions, answers, self.template, turn)
                found += fresh
            self._requests[name] = found
        return self._requests[name]

    def measure(self, system: System, requests: Sequence[Request], streams: int) -> Measured:
        """The requests answered by a system, in this run or in the one that it goes on with."""
        return self.blocks.measure(system, requests, streams, self.max_tokens, self.temperature)

    def any_request(self) -> Request:
        """Some first prompt, to warm a server up with."""
        return first_requests(next(iter(self.sets.values()))[:8], self.template)[0]


@dataclass
class InTurns:
    """Cells, each with its detail, and the plain blocks measured so far."""

    workload: Workload
    concurrency: Sequence[int]
    cells: list[Cell] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)

    def places(self) -> list[Place]:
        return [(name, streams) for name in self.workload.sets for streams in self.concurrency]

    def together(self, plain: System | None, drafted: System) -> None:
        """Cells of a drafted system, with the plain one up beside it."""
        for name, streams in self.places():
            requests = self.workload.requests(name, plain or drafted, streams)
            made, around = Measured(), list[Measured]()
            if plain and streams == 1:
                around = [Measured()]
                for request in requests:
                    around[0].add(self.workload.measure(plain, [request], streams))
                    made.add(self.workload.measure(drafted, [request], streams))
            else:
                if plain:
                    around.append(self.workload.measure(plain, requests, streams))
                made = self.workload.measure(drafted, requests, streams)
                if plain:
                    around.append(self.workload.measure(plain, requests, streams))
            self.add(name, streams, drafted, made, around)

    def blocks(self, system: System) -> dict[Place, Measured]:
        """Every place measured by one system."""
        found = {}
        for name, streams in self.places():
            requests = self.workload.requests(name, system, streams)
            found[name, streams] = self.workload.measure(system, requests, streams)
        return found

    def add(
        self, name: str, streams: int, drafted: System, made: Measured, baseline: Sequence[Measured]
    ) -> None:
        cell, detail = make_cell(
            name, drafted.engine, drafted.draft_tokens, streams, self.workload.temperature, made, baseline
        )
        self.cells.append(cell)
        self.details.append(detail)
        tau = "unknown" if cell.accept_length is None else f"{cell.accept_length:.3f}"
        speed = "speed-up not measured" if cell.speedup is None else f"speed-up {cell.speedup:.2f}"
        print(
            f"bench: {name}, drafts {cell.draft_tokens}, streams {streams}: accept length {tau}, {speed}",
            file=sys.stderr,
        )
