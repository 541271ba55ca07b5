"""The forest plot of compare.png: the ratio of each verdict with its interval on one axis, the band shaded.

The verdict cards of compare.html have the same logarithmic axis of ratios.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.report.tables import plain, wrapped
from evaluate.verdict.inference import UNDECIDED, Estimate
from evaluate.verdict.ratios import with_interval
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged

WIDTH, MARGIN = 400, 16
"""Width and side margins of a drawing, in its own units."""
LEAST_SPAN = math.log(1.12)
"""Least reach of the axis on each side of 1, as a logarithm: noise must not look like a difference."""
LARGEST_SPAN = math.log(32)
"""Largest reach; an interval that goes further ends in an arrow."""
TICKS = (0.05, 0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0, 20.0)
FINE_TICKS = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25)
TICK_ROOM = 34
"""Least distance of two labels, in units of the drawing."""
MOST_VERDICTS = 40
"""Largest number of lines that is still readable in a picture; compare.md and compare.json have all verdicts."""
ROW_HEIGHT, FOOTING = 0.36, 0.55
"""Inches of one verdict, and of the axis below all of them."""
NAME_CHARACTERS, REASON_CHARACTERS, REASON_LINES = 62, 76, 2


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
    places = [_log(place) for one in estimates for place in (one.ratio, *interval(one))]
    low = min([-LEAST_SPAN, -math.log1p(band), *places])
    high = max([LEAST_SPAN, math.log1p(band), *places])
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


def interval(found: Estimate) -> tuple[float, ...]:
    """Return the two ends of the 95 % interval; nothing if no interval is valid."""
    return () if found.low is None or found.high is None else (found.low, found.high)


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(LARGEST_SPAN, ratio - 1)


def quantity(judged: Sequence[Judged]) -> str:
    """Return the quantity of the ratios: of whole jobs in a comparison by nodes."""
    return "tokens/s of the job" if any(one.pair.is_of_jobs for one in judged) else "tokens/s/GPU"


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
    axes.set_xlabel(
        f"{quantity(judged)}, side named first over the other, with 95 % interval; shaded: {band:.1%} either way; "
        "hollow: undecided or not proven"
    )


def _interval(axes: Any, y: int, one: Judged, axis: Axis, colour: str, ink: str) -> None:
    found = one.estimate
    if found is None:
        axes.text(0, y, "no ratio", ha="center", va="center", fontsize=8, style="italic", color=ink)
        return
    ends = interval(found)
    places = [min(max(_log(end), axis.low), axis.high) for end in ends]
    if places:
        axes.plot(places, [y, y], color=ink, linewidth=1.4)
    for place, end, arrow in zip(places, ends, "<>", strict=False):
        axes.plot(place, y, "|" if axis.holds(max(end, 1e-300)) else arrow, color=ink, markersize=8, clip_on=False)
    inside = colour if is_filled(one) else "white"
    axes.plot(_log(found.ratio), y, "s", markersize=7, color=inside, markeredgecolor=ink)


def is_filled(one: Judged) -> bool:
    """Return whether the square of a verdict is filled: not if it is undecided, or the same work is not proven."""
    return one.is_proven and one.word != UNDECIDED


def _name(one: Judged) -> str:
    pair = one.pair
    name = plain(f"{pair.b_name} / {pair.a_name}")
    work = plain(f"{pair.model}, {pair.framework}, {pair.method}")
    return f"{textwrap.shorten(name, NAME_CHARACTERS, placeholder=' ...')}\n{work}"


def _verdict_text(one: Judged) -> str:
    found = one.estimate
    if one.word == NOT_COMPARABLE or found is None:
        return "\n".join(wrapped(f"not comparable: {one.reasons[0]}", REASON_LINES, REASON_CHARACTERS))
    ratio = f"{one.spoken_word}: {with_interval(found.ratio, found.low, found.high)}"
    basis = "; ".join(filter(None, (one.counts, one.would_decide)))
    return "\n".join("".join(wrapped(text, 1, REASON_CHARACTERS)) for text in (ratio, basis))
