"""Change points in a row of values, as the steady state of a run and the history of a machine use them.

PELT (Killick et al. 2012, `ruptures`) finds segments of equal mean, after single odd values have been clipped.
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
    variance = float(np.var(np.diff(values))) / 2 + 1e-12
    needed = penalty * np.log(len(values)) * variance
    if not _may_have_ends(values, shortest, needed):
        return [len(values)]
    from ruptures import KernelCPD  # 0.6 s, with the parts of SciPy that it loads

    search = KernelCPD(kernel="linear", min_size=shortest).fit(values[:, None])
    ends = [int(end) for end in search.predict(pen=needed)]
    if len(ends) == 1:
        return ends
    residuals = np.concatenate([part - part.mean() for part in np.split(values, ends[:-1])])
    inflated = (float(residuals @ residuals) / len(values) + 1e-12) * inflation(residuals)
    return [int(end) for end in search.predict(pen=penalty * np.log(len(values)) * inflated)]


def _may_have_ends(values: Floats, shortest: int, needed: float) -> bool:
    """Return whether any division may reduce the sum of squares by `needed` for each end: False is certain.

    A division is made of cuts of one stretch in two, and a cut reduces the sum of squares by at most the sum of
    S^2 / n over its two parts, S the sum of a part's n values less any constant. A part of `length` to 2 x `length`
    values lies in one of the windows below, where |S| is at most the range of the running sum.
    """
    running = np.concatenate([[0.0], np.cumsum(values - values.mean())])
    length = shortest
    while length <= len(values):
        windows = (running[start : start + 4 * length + 1] for start in range(0, len(values), 2 * length))
        if any(2 * float(np.ptp(window)) ** 2 > length * needed for window in windows):
            return True
        length *= 2
    return False


def inflation(residuals: Floats) -> float:
    """Return the factor on the variance of a mean that follows from the correlation of neighbours, at least 1."""
    power = float(residuals @ residuals)
    correlation = float(residuals[1:] @ residuals[:-1]) / power if power else 0.0
    correlation = min(HIGHEST_CORRELATION, max(0.0, correlation))
    return (1 + correlation) / (1 - correlation)
