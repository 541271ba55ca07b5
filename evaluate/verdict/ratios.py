"""A ratio as text, in one form everywhere: `1.10x (1.08 to 1.12)`.

Use `with_interval` for a ratio with its 95 % interval, `times` for a ratio alone, and `with_range` for a figure with
its smallest and largest run. Brackets hold 95 % intervals only. All numbers of one text have equally many decimals, and
rounding keeps order, so that a rounded ratio never lies outside its rounded interval.
"""

from __future__ import annotations

import math

SIGNIFICANT = 3
MOST_DECIMALS = 6


def times(ratio: float) -> str:
    """Return a ratio alone: `1.10x`."""
    return f"{written(ratio)[0]}x"


def with_interval(ratio: float, low: float | None, high: float | None) -> str:
    """Return a ratio with its 95 % interval in brackets; without brackets if there is no interval."""
    if low is None or high is None:
        return times(ratio)
    shown = written(ratio, low, high)
    return f"{shown[0]}x ({shown[1]} to {shown[2]})"


def with_range(ratio: float, smallest: float, largest: float) -> str:
    """Return a ratio with its smallest and largest value: `1.10x, min to max 1.05 to 1.12`."""
    shown = written(ratio, smallest, largest)
    return f"{shown[0]}x, min to max {shown[1]} to {shown[2]}"


def written(*values: float) -> tuple[str, ...]:
    """Return a ratio, or a ratio with the ends of its interval, as numbers with equally many decimals.

    The first value has at least three significant digits. A narrow interval adds up to two decimals, until half of its
    width is at least one unit of the last place.
    """
    decimals = _decimals(values)
    return tuple(_rounded(value, decimals) for value in values)


def _decimals(values: tuple[float, ...]) -> int:
    first = abs(values[0])
    if not 0 < first < math.inf:
        return SIGNIFICANT - 1
    least = max(0, SIGNIFICANT - 1 - math.floor(math.log10(first)))
    half = (max(values) - min(values)) / 2
    if 0 < half < math.inf:
        least = min(max(least, math.ceil(-math.log10(half))), least + 2)
    return min(least, MOST_DECIMALS)


def _rounded(value: float, decimals: int) -> str:
    """Return a number with `decimals`; a very large one, or one that would print as 0, in powers of ten."""
    if not math.isfinite(value) or abs(value) >= 1e6 or 0 < abs(value) < 0.5 * 10.0**-MOST_DECIMALS:
        return f"{value:.{SIGNIFICANT}g}"
    return f"{value:.{decimals}f}"
