"""Line charts as SVG text: no dependency, the same bytes for the same figures, sharp in a page of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 150, 40, 48
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

Points = Sequence[tuple[float, float]]


def line_chart(
    title: str, x_label: str, y_label: str, series: Mapping[str, Points], guide: float | None = None
) -> str:
    """A chart of named series; x positions are evenly spaced over their distinct values. guide: a dashed level."""
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points]
    top = max([*ys, guide or 0.0, 1e-9]) * 1.1
    place = {x: _LEFT + (i + 0.5) * (WIDTH - _LEFT - _RIGHT) / max(len(xs), 1) for i, x in enumerate(xs)}

    def level(y: float) -> float:
        return HEIGHT - _BOTTOM - y / top * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, title, anchor="middle", size=14),
        _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 10, x_label, anchor="middle"),
        f'<g transform="rotate(-90 16 {HEIGHT / 2:.0f})">{_text(16, HEIGHT / 2, y_label, anchor="middle")}</g>',
    ]
    for i in range(5):
        y = top * i / 4
        parts.append(_line(_LEFT, level(y), WIDTH - _RIGHT, level(y), "#dddddd"))
        parts.append(_text(_LEFT - 8, level(y) + 4, f"{y:.2f}", anchor="end"))
    parts += [_text(place[x], HEIGHT - _BOTTOM + 18, f"{x:g}", anchor="middle") for x in xs]
    if guide is not None:
        parts.append(
            _line(_LEFT, level(guide), WIDTH - _RIGHT, level(guide), "#666666", 'stroke-dasharray="5 4"')
        )
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{place[x]:.1f},{level(y):.1f}" for x, y in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{place[x]:.1f}" cy="{level(y):.1f}" r="3" fill="{colour}"/>' for x, y in points
        ]
        row = _TOP + 10 + 18 * number
        parts.append(
            f'<rect x="{WIDTH - _RIGHT + 12}" y="{row - 9}" width="10" height="10" fill="{colour}"/>'
        )
        parts.append(_text(WIDTH - _RIGHT + 28, row, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'
