"""What a plot shows, without the library that draws it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class LineChart:
    """Named series over a few distinct x, which stand evenly spaced whatever their values.

    bottom: where the y axis begins. least_top: it reaches at least so far. guide: a level and what it means.
    percent: y is a share of 1.
    """

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Points]
    bottom: float = 0.0
    least_top: float = 1.0
    guide: tuple[float, str] | None = None
    percent: bool = False


@dataclass(frozen=True)
class DatasetChart:
    """Accept length by dataset, the floors as levels across all of them, and the coverage beside them.

    rows: (dataset, accept length, coverage); None where there was nothing to measure.
    """

    title: str
    rows: Sequence[tuple[str, float | None, float | None]]
    floors: Mapping[str, float] = field(default_factory=dict)


Chart = LineChart | DatasetChart
