"""Arithmetic on the samples of one device: energy between two times, from its counter and from its power.

A counter is made to rise without end first: one that starts again at its largest value is continued there; one that
falls anywhere else was reset and counts nothing. Power is integrated by the trapezoidal rule. Energy at a time between
two samples is on the straight line between them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST_WATTS = 3000.0
"""More than any device draws. A counter that starts again has grown by no more than this in the meantime."""
LARGEST_GAP_SECONDS = 1.0
Floats = NDArray[np.float64]
Interval = tuple[float, float]
"""Start and end in seconds."""


class JoulesError(ValueError):
    """No energy follows from these samples; the message contains the reason."""


def known(times: Sequence[float], values: Sequence[float | None]) -> tuple[Floats, Floats]:
    """Return the times and values of the samples that have a value."""
    pairs = [(time, value) for time, value in zip(times, values, strict=True) if value is not None]
    found = np.asarray(pairs, dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def require_rising(times: Sequence[float]) -> None:
    """Raise JoulesError unless every sample is later than the one before."""
    for number, (before, after) in enumerate(zip(times, times[1:], strict=False)):
        if after <= before:
            raise JoulesError(f"the clock of the samples goes back from {before:.3f} s to {after:.3f} s ({number + 2})")


def require_cover(times: Floats, intervals: Sequence[Interval]) -> None:
    """Raise JoulesError unless the samples reach over all intervals without a gap."""
    first, last = intervals[0][0], intervals[-1][1]
    if len(times) < 2 or times[0] > first:
        missing = "none of" if len(times) < 2 else f"the first {times[0] - first:.1f} s of"
        raise JoulesError(f"{missing} the steady steps were sampled")
    if times[-1] < last:
        raise JoulesError(f"the samples end {last - times[-1]:.1f} s before the last steady step")
    inside = times[(times >= first) & (times <= last)]
    widest = float(np.diff(np.concatenate([[first], inside, [last]])).max())
    if widest > LARGEST_GAP_SECONDS:
        raise JoulesError(f"there is a gap of {widest:.1f} s between two samples (limit {LARGEST_GAP_SECONDS:g} s)")


def by_counter(times: Floats, counts: Floats, joules_a_count: float, wraps: float | None) -> Floats:
    """Return the joules since the first sample, from a counter; `wraps` is its largest value plus one, in counts.

    Raises JoulesError for a counter that was reset.
    """
    steps = np.diff(counts)
    for place in np.flatnonzero(steps < 0):
        grown = steps[place] + (wraps or 0.0)
        most = MOST_WATTS * (times[place + 1] - times[place])
        if not wraps or not 0 <= grown * joules_a_count <= most:
            before, after = (joules_a_count * counts[place + offset] for offset in (0, 1))
            raise JoulesError(f"the counter was reset: it fell from {before:,.1f} J to {after:,.1f} J")
        steps[place] = grown
    return np.concatenate([[0.0], np.cumsum(steps)]) * joules_a_count


def by_power(times: Floats, watts: Floats) -> Floats:
    """Return the joules since the first sample, from power in watts."""
    return np.concatenate([[0.0], np.cumsum(np.diff(times) * (watts[1:] + watts[:-1]) / 2)])


def spent(times: Floats, joules: Floats, intervals: Sequence[Interval]) -> float:
    """Return the joules inside the intervals; `joules` is the energy up to each time. Raises JoulesError."""
    require_cover(times, intervals)
    ends = np.asarray(intervals, dtype=np.float64)
    at = np.interp(ends.ravel(), times, joules).reshape(-1, 2)
    return float((at[:, 1] - at[:, 0]).sum())


def steady_intervals(ends: Sequence[float], seconds: Sequence[float], skipped: int) -> list[Interval]:
    """Return the intervals of the steps after the first `skipped` ones; steps without a gap between them become one."""
    found: list[Interval] = []
    for end, lasted in list(zip(ends, seconds, strict=True))[skipped:]:
        start = end - lasted
        if found and start - found[-1][1] <= 1e-3 * lasted:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
