"""Measured blocks, kept as they are done, so that a benchmark that was stopped goes on where it was.

A block is a list of requests answered by one system at one concurrency. Its unit is what was asked and how often that
was asked before: plain blocks stand before and after a drafted one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from eyas.core.artefact import PARTS
from eyas.core.digest import value_digest
from eyas.core.units import UnitLog

from .counters import Counters
from .measured import Measured, Sample
from .prompt_sets import Request
from .systems import System


@dataclass
class Blocks:
    """units: the log of a workbench; None keeps nothing."""

    units: UnitLog | None = None
    reused: int = 0
    _asked: Counter[str] = field(default_factory=Counter)

    def measure(
        self, system: System, requests: Sequence[Request], streams: int, max_tokens: int, temperature: float
    ) -> Measured:
        """The block as an earlier run measured it, else measured now."""
        if self.units is None:
            return system.measure(requests, streams, max_tokens, temperature)
        what = [
            system.draft_tokens,
            streams,
            max_tokens,
            temperature,
            [asdict(request) for request in requests],
        ]
        unit = value_digest(what)
        self._asked[unit] += 1
        unit = f"{unit}-{self._asked[unit]}"
        done = self.units.done(unit)
        if done is not None:
            self.reused += 1
            return _read((self.units.folder / done.file).read_bytes())
        measured = system.measure(requests, streams, max_tokens, temperature)
        data = orjson.dumps(asdict(measured))
        self.units.finish(unit, f"{PARTS}/{unit}.json", rows=len(requests), tokens=measured.tokens, data=data)
        return measured


def _read(data: bytes) -> Measured:
    fields: dict[str, Any] = orjson.loads(data)
    counters = fields["counters"]
    if counters is not None:
        positions = tuple(counters.pop("accepted_by_position"))
        counters = Counters(**counters, accepted_by_position=positions)
    return Measured([Sample(**sample) for sample in fields["samples"]], counters, fields["foreign"])
