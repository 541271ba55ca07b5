"""The forest plot of compare.png: the ratio of each verdict with its interval on one axis, the band shaded.

The verdict cards of compare.html have the same logarithmic axis of ratios.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.report.tables import plain
from evaluate.verdict.inference import Estimate
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged, times

WIDTH, MARGIN = 400, 16
"""Width and side margins of a drawing, in its own units."""
LEAST_SPAN = math.log(1.12)
"""Least reach of the axis on each side of 1, as a logarithm: noise must not look like a difference."""
LARGEST_SPAN = math.log(32)
"""Largest reach; an interval that goes further ends in an arrow."""
TICKS = (0.05, 0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0, 20.0)
FINE_TICKS = (0.9, 0.95, 1.0, 1.05, 1.1)
TICK_ROOM = 34
"""Least distance of two labels, in units of the drawing."""
MOST_VERDICTS = 40
"""Largest number of lines that is still readable in a picture; compare.md and compare.json have all verdicts."""
ROW_HEIGHT, FOOTING = 0.36, 0.55
"""Inches of one verdict, and of the axis below all of them."""
NAME_CHARACTERS, REASON_CHARACTERS, REASON_LINES = 76, 88, 2


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of ratios from `low` to `high` (natural logarithms).

    `band` is the largest relative difference that counts as none.
    """

    low: float
    high: float
    band: float

    def place(self, ratio: float) -> float:
        """Return the x coordinate of a ratio, clipped to the drawing."""
        share = (math.log(ratio) - self.low) / (self.high - self.low)
        return MARGIN + min(1.0, max(0.0, share)) * (WIDTH - 2 * MARGIN)

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio lies on the axis."""
        return self.low <= math.log(ratio) <= self.high


def axis_of(estimates: Iterable[Estimate], band: float) -> Axis:
    """Return one axis that covers all estimates; it always includes 1 and the band."""
    found = list(estimates)
    low = min([-LEAST_SPAN, -math.log1p(band), *(_log(ends(one)[0]) for one in found)])
    high = max([LEAST_SPAN, math.log1p(band), *(_log(ends(one)[1]) for one in found)])
    room = 0.06 * (high - low)
    return Axis(max(low - room, -LARGEST_SPAN), min(high + room, LARGEST_SPAN), band)


def ticks(axis: Axis) -> list[float]:
    """Return the ratios to mark on an axis, 1 first, with room for a label at each."""
    is_narrow = max(-axis.low, axis.high) < math.log(1.3)
    candidates = [tick for tick in (FINE_TICKS if is_narrow else TICKS) if axis.holds(tick)]
    candidates.sort(key=lambda tick: (tick != 1, -abs(math.log(tick))))
    taken: list[float] = []
    for tick in candidates:
        if all(abs(axis.place(tick) - axis.place(other)) >= TICK_ROOM for other in taken):
            taken.append(tick)
    return taken


def ends(found: Estimate) -> tuple[float, float]:
    """Return the ends of an interval; without one, the ratio twice."""
    if found.low is None or found.high is None:
        return found.ratio, found.ratio
    return found.low, found.high


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(LARGEST_SPAN, ratio - 1)


def height(judged: Sequence[Judged]) -> float:
    """Return the height of the plot and its axis in inches."""
    return ROW_HEIGHT * len(judged[:MOST_VERDICTS]) + FOOTING if judged else 0.0


def draw(axes: Any, judged: Sequence[Judged], band: float, colours: Sequence[str], ink: str) -> None:
    """Draw the verdicts from top to bottom, each in the colour of its second side."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # compare.html needs the axis alone

    shown = judged[:MOST_VERDICTS]
    axis = axis_of([one.estimate for one in shown if one.estimate], band)
    axes.set_xlim(axis.low, axis.high)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.axvspan(-math.log1p(band), math.log1p(band), color="#E6E9EE", zorder=0)
    axes.axvline(0, color=ink, linestyle=":", linewidth=1)
    for y, (one, colour) in enumerate(zip(shown, colours, strict=False)):
        _interval(axes, y, one, axis, colour, ink)
        axes.annotate(
            _verdict_text(one), (1.01, y), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=ink
        )
    axes.xaxis.set_major_locator(FixedLocator([math.log(tick) for tick in ticks(axis)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{math.exp(value):g}x"))
    axes.set_yticks(range(len(shown)), [_name(one) for one in shown], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(f"tokens/s/GPU, second side over first, with 95 % interval; shaded: {band:.1%} either way")


def _interval(axes: Any, y: int, one: Judged, axis: Axis, colour: str, ink: str) -> None:
    found = one.estimate
    if found is None:
        axes.text(0, y, "no ratio", ha="center", va="center", fontsize=8, style="italic", color=ink)
        return
    if found.low is not None and found.high is not None:
        low, high = (min(max(math.log(max(end, 1e-300)), axis.low), axis.high) for end in (found.low, found.high))
        axes.plot([low, high], [y, y], color=ink, linewidth=1.4)
        for place, end, arrow in ((low, found.low, "<"), (high, found.high, ">")):
            axes.plot(place, y, "|" if axis.holds(max(end, 1e-300)) else arrow, color=ink, markersize=8, clip_on=False)
    axes.plot(math.log(found.ratio), y, "s", markersize=7, color=colour, markeredgecolor=ink)


def _name(one: Judged) -> str:
    pair = one.pair
    name = plain(f"{pair.b_name} / {pair.a_name}")
    work = plain(f"{pair.model}, {pair.framework}, {pair.method}")
    return f"{textwrap.shorten(name, NAME_CHARACTERS, placeholder=' ...')}\n{work}"


def _verdict_text(one: Judged) -> str:
    found = one.estimate
    if one.word == NOT_COMPARABLE or found is None:
        return "\n".join(
            textwrap.wrap(
                plain(f"not comparable: {one.reasons[0]}"),
                REASON_CHARACTERS,
                max_lines=REASON_LINES,
                placeholder=" ...",
            )
        )
    runs = f"{found.runs[0]} and {found.runs[1]} runs, {found.machines[0]} and {found.machines[1]} machines"
    interval = "no interval" if found.low is None else f"{times(found.low)} to {times(ends(found)[1])}"
    return f"{one.word}: {times(found.ratio)} ({interval})\n{runs}"
