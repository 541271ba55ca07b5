"""Change points in a row of values, as the steady state of a run and the history of a machine use them.

Segments of equal mean are found after single odd values have been clipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
CLIP_DEVIATIONS = 5
SMALLEST = 1e-9
HIGHEST_CORRELATION = 0.95

Floats = npt.NDArray[np.float64]


def clipped(values: Floats, reach: int, least: float = SMALLEST) -> Floats:
    """Return values with single odd ones, but no levels, clipped to within 5 deviations of a running median.

    The median is over `reach` values on each side; no value closer to it than `least` is clipped.
    """
    windows = sliding_window_view(np.pad(values, reach, mode="edge"), 2 * reach + 1)
    centre = np.partition(windows, reach, axis=1)[:, reach]
    width = CLIP_DEVIATIONS * NORMAL_MAD * float(np.median(np.abs(values - centre))) + least
    return np.clip(values, centre - width, centre + width)


def segment_ends(values: Floats, shortest: int, penalty: float) -> list[int]:
    """Return the ends of segments of equal mean. Noise that is correlated from value to value needs more evidence.

    A segment has `shortest` values or more; one more segment must reduce the sum of squares by `penalty` x log(n) x
    the variance of a value.
    """
    scale = penalty * np.log(len(values))
    ends = _division(values, shortest, scale * (float(np.var(np.diff(values))) / 2 + 1e-12))
    if len(ends) == 1:
        return ends
    residuals = np.concatenate([part - part.mean() for part in np.split(values, ends[:-1])])
    power = float(residuals @ residuals) / len(values) + 1e-12
    return _division(values, shortest, scale * power * inflation(residuals))


def _division(values: Floats, shortest: int, penalty: float) -> list[int]:
    """Return the ends of the segments with the least sum of squares around their means, plus `penalty` for each.

    The best division up to each value follows from those before it (optimal partitioning: Jackson et al., IEEE Signal
    Processing Letters 12, 2005; PELT, Killick et al. 2012, finds the same). Time and memory grow with the square and
    the number of values: 2 ms for 500.
    """
    count, centred = len(values), values - values.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    lengths = np.arange(count, 0.0, -1.0)
    best, start_of = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
    best[0] = -penalty
    for end in range(shortest, count + 1):
        starts = end - shortest + 1
        costs = best[:starts] - squares[:starts] - (sums[end] - sums[:starts]) ** 2 / lengths[count - end :][:starts]
        start_of[end] = costs.argmin()
        best[end] = costs[start_of[end]] + squares[end] + penalty
    ends = [count]
    while start_of[ends[-1]]:
        ends.append(int(start_of[ends[-1]]))
    return ends[::-1]


def inflation(residuals: Floats) -> float:
    """Return the factor on the variance of a mean that follows from the correlation of neighbours, at least 1."""
    power = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / power if power else 0.0
    correlation = min(HIGHEST_CORRELATION, max(0.0, correlation))
    return (1 + correlation) / (1 - correlation)
