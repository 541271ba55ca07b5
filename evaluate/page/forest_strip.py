"""The ratio of a verdict with its interval, drawn as one strip of a forest plot; all strips share one axis."""

from __future__ import annotations

from evaluate.page.markup import Html, element, joined
from evaluate.report.axis import MARGIN, WIDTH, Axis, ticks
from evaluate.verdict.inference import Estimate

HEIGHT = 74
LINE, AXIS = 24, 46
"""Heights of the interval and of the axis, in units of the drawing."""


def strip(found: Estimate, axis: Axis, platform: str) -> Html:
    """Return the drawing of one estimate; `platform` gives the colour."""
    left, right, middle = axis.place(found.low), axis.place(found.high), axis.place(found.ratio)
    start, end = axis.place(1 / (1 + axis.band)), axis.place(1 + axis.band)
    said = (
        f"Ratio {found.ratio:.3f}, 95 % interval {found.low:.3f} to {found.high:.3f}; "
        f"differences up to {axis.band:.1%} do not matter"
    )
    parts = [
        element("rect", x=_at(start), y=4, width=_at(end - start), height=AXIS - 4, class_="band"),
        element("line", x1=_at(axis.place(1)), x2=_at(axis.place(1)), y1=4, y2=AXIS, class_="one"),
        element("line", x1=MARGIN, x2=WIDTH - MARGIN, y1=AXIS, y2=AXIS, class_="axis"),
        *(_tick(axis, tick) for tick in ticks(axis)),
        element("rect", x=_at(middle - 5), y=LINE - 5, width=10, height=10, class_=f"ratio p-{platform}"),
        element("line", x1=_at(left), x2=_at(right), y1=LINE, y2=LINE, class_="interval"),
        *(_end(place, ratio, axis) for place, ratio in ((left, found.low), (right, found.high))),
    ]
    box = f"0 0 {WIDTH} {HEIGHT}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=said, class_="forest")


def _tick(axis: Axis, tick: float) -> Html:
    x = axis.place(tick)
    mark = element("line", x1=_at(x), x2=_at(x), y1=AXIS, y2=AXIS + 4, class_="axis")
    return joined([mark, element("text", f"{tick:g}\u00d7", x=_at(x), y=AXIS + 18, text_anchor="middle")])


def _end(place: float, ratio: float, axis: Axis) -> Html:
    """Return the end of an interval: a bar, or an arrow where it goes on beyond the axis."""
    if axis.holds(max(ratio, 1e-300)):
        return element("line", x1=_at(place), x2=_at(place), y1=LINE - 8, y2=LINE + 8, class_="interval")
    tip = place + (6 if ratio > 1 else -6)
    return element("path", d=f"M{_at(place)} {LINE - 5}L{_at(tip)} {LINE}L{_at(place)} {LINE + 5}", class_="interval")


def _at(value: float) -> str:
    return f"{value:.1f}"
