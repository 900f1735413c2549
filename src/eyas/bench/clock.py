"""CPU and wall time of decoding, the first token apart."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """Seconds on both clocks. CPU is that of the whole process: with one thread it is the time of the work."""

    cpu: float
    wall: float

    def since(self, earlier: Moment) -> Moment:
        return Moment(self.cpu - earlier.cpu, self.wall - earlier.wall)


def now() -> Moment:
    return Moment(time.process_time(), time.perf_counter())
