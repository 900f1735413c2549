"""Plots: their bytes, their text, and shapes that are far from usual."""

from __future__ import annotations

import io
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from eyas.report.chart import Chart, DatasetChart, LineChart
from eyas.report.draw import Drawn, draw

HOSTILE = "_</text><script>alert(1)</script> $x^2$ & \x1b[31m\x00"


def lines(series: dict[str, list[tuple[float, float]]], **settings: object) -> LineChart:
    return LineChart("Speed-up over concurrency", "streams", "speed-up", series, **settings)  # type: ignore[arg-type]


CHARTS: dict[str, Chart] = {
    "point": lines({"3 drafts": [(1, 1.4)]}, guide=(1.0, "plain decoding")),
    "lines": lines({f"{d} drafts": [(1, 1.0 + d), (8, 1.1)] for d in (1, 2, 3)}),
    "many": lines({f"set {i}": [(k, 0.9**i) for k in range(1, 6)] for i in range(40)}, percent=True),
    "uneven": lines({"1 draft": [(1, 0.4)], "3 drafts": [(3, 0.1), (1, 0.3), (2, 0.2)]}),
    "datasets": DatasetChart("By dataset", [("chat", 1.4, 0.9), ("code", None, None)], {"bigram": 1.2}),
    "nothing accepted": DatasetChart("By dataset", [("chat", 1.0, None)]),
}


def drawn(charts: dict[str, Chart]) -> dict[str, Drawn]:
    made = draw(charts)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def plots() -> dict[str, Drawn]:
    return drawn(CHARTS)


@pytest.mark.parametrize("name", CHARTS)
def test_both_forms_of_a_plot_can_be_opened(plots: dict[str, Drawn], name: str) -> None:
    assert ET.fromstring(plots[name].svg).tag.endswith("svg")
    image = Image.open(io.BytesIO(plots[name].png))
    image.load()
    assert image.format == "PNG"
    assert 1000 < image.width < 2500
    assert 200 < image.height < 2500
    assert len(image.convert("L").getcolors(256) or []) > 10, "the image is blank"


def test_the_same_figures_give_the_same_bytes(plots: dict[str, Drawn]) -> None:
    assert drawn(CHARTS) == plots, "two reports of one result would differ"


def test_the_same_bytes_come_out_of_another_process_on_another_day(plots: dict[str, Drawn]) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_draw as t;"
        "sys.stdout.buffer.write(t.drawn(t.CHARTS)['lines'].svg)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, __file__.rpartition("/")[0]], capture_output=True, check=True
    )
    assert done.stdout == plots["lines"].svg
    assert b"<dc:date>" not in done.stdout


def test_a_name_is_shown_as_it_is_and_nothing_in_it_is_obeyed() -> None:
    charts: dict[str, Chart] = {
        "lines": lines({HOSTILE: [(1, 1.0)], "other": [(1, 2.0)]}),
        "datasets": DatasetChart(HOSTILE, [(HOSTILE, 1.5, 0.5)], {HOSTILE: 1.2}),
    }
    for plot in drawn(charts).values():
        root = ET.fromstring(plot.svg)
        assert not [element for element in root.iter() if element.tag.endswith("script")]
        texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
        assert any(text.startswith("_</text><script>alert(1)") for text in texts), "a name got lost"


def test_every_series_is_in_the_legend_and_no_label_lies_on_the_axes(plots: dict[str, Drawn]) -> None:
    root = ET.fromstring(plots["many"].svg)
    labels = [e for e in root.iter() if e.tag.endswith("text") and (e.text or "").startswith("set ")]
    assert len(labels) == 40
    ticks = [e for e in root.iter() if e.tag.endswith("text") and e.text == "5"]
    assert min(float(e.attrib["x"]) for e in labels) > float(ticks[0].attrib["x"]), (
        "the legend covers the lines"
    )


def test_a_users_own_matplotlib_settings_change_nothing(
    plots: dict[str, Drawn], monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 9.0)
    monkeypatch.setitem(matplotlib.rcParams, "axes.labelsize", 30.0)
    assert drawn({"lines": CHARTS["lines"]})["lines"] == plots["lines"]
    assert matplotlib.rcParams["lines.linewidth"] == 9.0, "nor do ours change the user's"


def test_no_window_library_is_loaded() -> None:
    code = (
        "import sys; from eyas.report.draw import draw; from eyas.report.chart import LineChart;"
        "draw({'a': LineChart('t', 'x', 'y', {'s': [(1, 1.0)]})});"
        "print([m for m in ('matplotlib.pyplot', 'tkinter') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
