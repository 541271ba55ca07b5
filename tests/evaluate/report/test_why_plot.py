"""why.png: milliseconds on one axis, a look for each kind that needs no colour, and texts that do not collide."""

from __future__ import annotations

import struct
from itertools import combinations
from typing import Any

import matplotlib as mpl
import pytest
from explained import A, B, attributed, comparison, refused, side_a, side_b, unprofiled
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from evaluate.report import why_plot
from evaluate.report.comparison import Comparison
from evaluate.report.kind_bars import COLOURS, DARK, HATCHES, LETTERS
from utils.kinds import KINDS


def drawn(found: Comparison) -> tuple[Any, Any]:
    """Return the figure and the renderer that measures its texts, with the settings of the picture."""
    with mpl.rc_context({"text.parse_math": False, "font.size": 9}):
        figure = why_plot.draw(found)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
    return figure, renderer


def parts(axes: Any, y: int) -> list[float]:
    """Return start and width of the parts of one bar, one after the other."""
    bars = [
        one for one in axes.patches if isinstance(one, Rectangle) and one.get_y() < y < one.get_y() + one.get_height()
    ]
    return [float(value) for one in bars for value in (one.get_x(), one.get_width())]


def test_four_bars_on_one_axis_from_0_in_milliseconds():
    figure, _ = drawn(comparison(attributed()))
    (axes,) = figure.axes
    assert axes.get_xlabel() == "milliseconds of one step"
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 158, "the interval of side b ends at 158 ms"
    # kinds in their order, worked by hand from the made-up sides
    assert parts(axes, 0) == pytest.approx([0, 60, 60, 10, 70, 20, 90, 5, 95, 5])
    assert parts(axes, 1) == pytest.approx([0, 66, 66, 10, 76, 24, 100, 5, 105, 9, 114, 1, 115, 15])
    assert parts(axes, 2) == pytest.approx([0, 50, 50, 15, 65, 15, 80, 5, 85, 5])
    assert parts(axes, 3) == pytest.approx([0, 86, 86, 25, 111, 15, 126, 5, 131, 5, 136, 20])
    names = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert names == [
        f"{A}, floor: 100 ms",
        f"{A}, measured: 130 ms",
        f"{B}, floor: 90 ms",
        f"{B}, measured: 156 ms",
    ]


def test_whiskers_show_the_intervals_and_a_stroke_the_step():
    figure, _ = drawn(comparison(attributed()))
    lines = [[float(x) for x in line.get_xdata()] for line in figure.axes[0].lines]
    for ends in ([98, 102], [129, 131], [89.1, 90.9], [154, 158], [130, 130], [156, 156]):
        assert any(line == pytest.approx(ends) for line in lines), ends
    assert len(lines) == 6
    alone = attributed(side_a(step_low=None, step_high=None))
    assert len(drawn(comparison(alone))[0].axes[0].lines) == 5


def test_a_side_without_a_profile_is_a_hollow_bar_of_its_step():
    figure, _ = drawn(comparison(attributed(b=unprofiled(side_b()))))
    (axes,) = figure.axes
    assert parts(axes, 3) == pytest.approx([0, 156])
    hollow = [one for one in axes.patches if one.get_width() == pytest.approx(156)]
    assert [one.get_facecolor()[3] for one in hollow] == [0.0]


def test_no_kind_is_told_by_its_colour_alone():
    assert len({HATCHES[kind] or COLOURS[kind] for kind in KINDS}) == len(KINDS)
    assert len(set(LETTERS.values())) == len(KINDS)

    def luminance(colour: str) -> float:  # WCAG 2.2, relative luminance
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    plain = [kind for kind in KINDS if not HATCHES[kind]]
    greys = [luminance(COLOURS[kind]) for kind in plain]
    assert all(abs(a - b) > 0.3 for a, b in combinations(greys, 2)), "kinds without a hatch differ in grey"
    for kind in KINDS:
        ink = 1.0 if kind in DARK else 0.0
        light, dark = sorted((luminance(COLOURS[kind]), ink), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3.5, f"the letter of {kind} can be read"


def test_texts_do_not_collide_and_stay_inside():
    long = side_a(name="A very long name of a device, in a partition of one eighth of it, as no vendor makes them")
    figure, renderer = drawn(comparison(attributed(a=long), attributed()))
    figure_box = figure.bbox
    texts = [*figure.texts, *(text for axes in figure.axes for text in (*axes.get_yticklabels(), axes.xaxis.label))]
    texts += figure.legends[0].get_texts()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
    assert [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)] == []
    for text, box in boxes:
        assert box.x0 >= 0 and box.x1 <= figure_box.x1 and box.y0 >= 0 and box.y1 <= figure_box.y1, text


def test_more_pairs_than_panels_are_counted_in_the_picture():
    count = why_plot.MOST_PANELS + 2
    figure, _ = drawn(comparison(*[attributed()] * count))
    assert len(figure.axes) == why_plot.MOST_PANELS
    assert any(f"the first {why_plot.MOST_PANELS} of {count} pairs" in text.get_text() for text in figure.texts)


def test_a_refused_pair_has_no_panel():
    assert len(drawn(comparison(refused("no probe"), attributed()))[0].axes) == 1


def test_the_png_carries_the_mark_of_the_suite_and_draws_hostile_names_as_they_are():
    image = why_plot.png(comparison(attributed(a=side_a(name="$x^2$ \x1b[31m <b> \u4e2d"))))
    assert image.startswith(b"\x89PNG") and b"tEXtSoftware\0tprimat" in image
    width, height = struct.unpack(">II", image[16:24])
    assert width > 1000 and height > 300
