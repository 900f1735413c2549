"""Plots drawn by matplotlib: figures by its object API, so that nothing is left behind in the process.

The same figures give the same SVG bytes with the same version of matplotlib.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .chart import Chart, DatasetChart, LineChart
from .table import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "the plots are missing: matplotlib is not installed (pip install 'eyas[bench]')"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#8c6d1f", "#4aa3df", "#555555")
"""After Okabe and Ito: colour-blind readers can tell them apart; the yellows are darker, to be seen on white."""
MARKERS, DASHES = "osD^vPX", ("-", "--", ":", "-.")
INK, PALE, PAPER = "#1f2328", "#d0d7de", "#ffffff"

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and the page's own letters draw it
    "font.size": 10.0,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 12.0,
    "axes.titlepad": 12.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.7,
    "xtick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.color": PALE,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
}
_WIDTH, _HEIGHT = 7.6, 3.2
_LONGEST = 30
"""Letters of a name in a plot; the tables have the whole of it."""


@dataclass(frozen=True)
class Drawn:
    """A plot as the bytes of both forms."""

    svg: bytes
    png: bytes


def draw(charts: Mapping[str, Chart], png: bool = True) -> dict[str, Drawn] | None:
    """The plots by name; None if matplotlib is not installed, which the caller says with MISSING. Without `png` the
    bytes of that form are empty."""
    try:
        import matplotlib
    except ImportError:
        return None
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # in a PNG a box stands for it
        matplotlib.rcdefaults()  # a user's matplotlibrc changes nothing
        matplotlib.rcParams.update(_STYLE)
        return {name: _drawn(name, chart, png) for name, chart in charts.items()}


def _drawn(name: str, chart: Chart, with_png: bool) -> Drawn:
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = name  # ids differ between the plots of one page
    figure = _lines(chart) if isinstance(chart, LineChart) else _datasets(chart)
    nobody: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata=nobody)
    if with_png:
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return Drawn(svg.getvalue(), png.getvalue())


def _figure(height: float, panels: int = 1, **shares: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False, **shares)[0]


def _lines(chart: LineChart) -> Figure:
    """Lines with markers; the legend stands beside the axes, in the order in which the lines end."""
    figure, (axes,) = _figure(_HEIGHT)
    places = {x: i for i, x in enumerate(sorted({x for points in chart.series.values() for x, _ in points}))}
    handles, labels, ends = [], [], []
    for number, (name, points) in enumerate(chart.series.items()):
        ordered = sorted(points)
        (line,) = axes.plot(
            [places[x] for x, _ in ordered],
            [y for _, y in ordered],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            linewidth=1.8,
            markersize=6,
            clip_on=False,
        )
        handles.append(line)
        labels.append(name)
        ends.append(ordered[-1][1])
    if chart.guide is not None:
        level, meaning = chart.guide
        handles.append(axes.axhline(level, color=INK, linestyle=(0, (5, 4)), linewidth=1.2, zorder=1))
        labels.append(meaning)
        ends.append(level)
    _scale(axes, chart, list(places))
    if len(chart.series) == 1:
        _values(axes, chart)
    if len(handles) > 1:
        order = sorted(range(len(handles)), key=lambda i: -ends[i])
        _legend(figure, [handles[i] for i in order], [labels[i] for i in order], loc="outside right upper")
    return figure


def _scale(axes: Axes, chart: LineChart, xs: list[float]) -> None:
    from matplotlib.ticker import PercentFormatter

    ys = [y for points in chart.series.values() for _, y in points]
    if chart.guide is not None:
        ys.append(chart.guide[0])
    top = max(chart.least_top, chart.bottom + (max(ys) - chart.bottom) * 1.12)
    axes.set_ylim(chart.bottom, top)
    axes.set_xlim(-0.5, len(xs) - 0.5)
    axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axes.tick_params(length=0, pad=7)
    axes.grid(axis="y")
    axes.spines["bottom"].set_zorder(1)  # behind points that lie on it
    axes.spines["left"].set_visible(False)
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(_clean(chart.title), parse_math=False)
    axes.set_xlabel(_clean(chart.x_label), parse_math=False)
    axes.set_ylabel(_clean(chart.y_label), parse_math=False)


def _values(axes: Axes, chart: LineChart) -> None:
    """The figures themselves, above the points of the only line."""
    shown: Callable[[float], str] = (lambda y: f"{y:.0%}") if chart.percent else (lambda y: f"{y:.2f}")
    (points,) = chart.series.values()
    for place, (_, y) in enumerate(sorted(points)):
        axes.annotate(
            shown(y), (place, y), (0, 8), textcoords="offset points", ha="center", annotation_clip=False
        )


def _datasets(chart: DatasetChart) -> Figure:
    """A dot a dataset, on a line from 1, where nothing was accepted; floors as levels; coverage in a panel beside."""
    has_coverage = any(coverage is not None for _, _, coverage in chart.rows)
    figure, panels = _figure(
        1.5 + 0.32 * len(chart.rows),
        2 if has_coverage else 1,
        sharey=True,
        **({"width_ratios": (2, 1)} if has_coverage else {}),
    )
    places = range(len(chart.rows))
    axes = panels[0]
    most = max([1.0, *chart.floors.values(), *(tau for _, tau, _ in chart.rows if tau is not None)])
    for place, (_, tau, _) in zip(places, chart.rows, strict=True):
        if tau is not None:
            axes.plot([1.0, tau], [place, place], color=COLOURS[0], linewidth=2.5, solid_capstyle="butt")
            axes.plot([tau], [place], color=COLOURS[0], marker="o", markersize=7, clip_on=False)
        axes.annotate(
            "not measured" if tau is None else f"{tau:.2f}",
            (tau or 1.0, place),
            (9, 0),
            textcoords="offset points",
            va="center",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0},  # a floor's line passes behind it
        )
    handles = [
        axes.axvline(level, color=COLOURS[1 + i], linestyle=DASHES[1 + i % 3], linewidth=1.4, zorder=1)
        for i, level in enumerate(chart.floors.values())
    ]
    axes.set_xlim(1.0, 1.0 + max(most - 1.0, 0.1) * 1.25)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_yticks(places, [_short(name) for name, _, _ in chart.rows], parse_math=False)
    axes.set_xlabel("accept length")
    axes.set_title(_clean(chart.title), parse_math=False)
    if has_coverage:
        _coverage(panels[1], chart)
    for panel in panels:
        panel.tick_params(length=0, pad=7)
        panel.grid(axis="x")
        panel.spines["bottom"].set_visible(False)
    if handles:
        _legend(figure, handles, list(chart.floors), loc="outside lower left", ncols=len(handles))
    return figure


def _coverage(axes: Axes, chart: DatasetChart) -> None:
    from matplotlib.ticker import PercentFormatter

    for place, (_, _, coverage) in enumerate(chart.rows):
        if coverage is not None:
            axes.barh(place, coverage, height=0.5, color=COLOURS[2], alpha=0.55)
            axes.annotate(
                f"{coverage:.0%}", (0, place), (5, 0), textcoords="offset points", va="center", color=INK
            )
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("labels in the draft vocabulary")
    axes.tick_params(labelleft=False)


def _legend(figure: Figure, handles: list[Any], labels: list[str], **how: Any) -> None:
    """A legend whose labels are names from data: matplotlib would leave out those that begin with an underscore and
    read what stands between dollar signs as a formula."""
    columns = how.pop("ncols", 1 + len(handles) // 19)
    legend = figure.legend(handles, [f"{i}" for i in range(len(handles))], ncols=columns, **how)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(_short(label))


def _short(name: str) -> str:
    name = _clean(name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _clean(text: str) -> str:
    return printable(text).replace("\n", " ")
