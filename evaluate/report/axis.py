"""The logarithmic axis of ratios that the forest plots of compare.html and compare.png share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from evaluate.verdict.inference import Estimate

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
    low = min([-LEAST_SPAN, -math.log1p(band), *(_log(one.low) for one in found)])
    high = max([LEAST_SPAN, math.log1p(band), *(_log(one.high) for one in found)])
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


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.copysign(LARGEST_SPAN, ratio - 1)
