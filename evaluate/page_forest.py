"""The ratio of a verdict with its interval, drawn as one strip of a forest plot; all strips share one axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evaluate.page_html import Html, element, joined
from evaluate.statistics import Estimate

WIDTH, HEIGHT, MARGIN = 400, 74, 16
LINE, AXIS = 24, 46
"""Heights of the interval and of the axis, in units of the drawing."""
LEAST_SPAN = math.log(1.12)
"""The axis reaches at least this far on both sides of 1, so that noise does not look like a difference."""
LARGEST_SPAN = math.log(32)
TICKS = (0.05, 0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0, 20.0)
FINE_TICKS = (0.9, 0.95, 1.0, 1.05, 1.1)
TICK_ROOM = 34


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of ratios, with the band in which a difference does not matter."""

    low: float
    high: float
    band: float

    def place(self, ratio: float) -> float:
        """Return where a ratio stands, held inside the drawing."""
        share = (math.log(ratio) - self.low) / (self.high - self.low)
        return MARGIN + min(1.0, max(0.0, share)) * (WIDTH - 2 * MARGIN)

    def holds(self, ratio: float) -> bool:
        """Whether a ratio lies on the axis."""
        return self.low <= math.log(ratio) <= self.high


def axis_of(estimates: Iterable[Estimate], band: float) -> Axis:
    """Return the one axis on which all estimates are drawn; 1 and the band are always on it."""
    found = list(estimates)
    low = min([-LEAST_SPAN, -math.log1p(band), *(_log(one.low) for one in found)])
    high = max([LEAST_SPAN, math.log1p(band), *(_log(one.high) for one in found)])
    room = 0.06 * (high - low)
    return Axis(max(low - room, -LARGEST_SPAN), min(high + room, LARGEST_SPAN), band)


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


def ticks(axis: Axis) -> list[float]:
    """Return the ratios that are marked on an axis, 1 first, none nearer to another than a label needs."""
    is_narrow = max(-axis.low, axis.high) < math.log(1.3)
    candidates = [tick for tick in (FINE_TICKS if is_narrow else TICKS) if axis.holds(tick)]
    candidates.sort(key=lambda tick: (tick != 1, -abs(math.log(tick))))
    taken: list[float] = []
    for tick in candidates:
        if all(abs(axis.place(tick) - axis.place(other)) >= TICK_ROOM for other in taken):
            taken.append(tick)
    return taken


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


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(LARGEST_SPAN, ratio - 1)


def _at(value: float) -> str:
    return f"{value:.1f}"
