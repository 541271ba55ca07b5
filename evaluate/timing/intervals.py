"""Lengths of sets of intervals: their union, and the part of them inside the windows of the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Windows:
    """Windows of time that do not overlap, in order; the measure of everything else is what lies inside them."""

    def __init__(self, start: Floats, end: Floats) -> None:
        self.start, self.end = start, end
        self._edges = np.column_stack([start, end]).ravel()
        self._inside = np.concatenate(
            [[0.0], np.cumsum(np.diff(self._edges) * (np.arange(len(self._edges) - 1) % 2 == 0))]
        )

    @property
    def seconds(self) -> float:
        """Sum of the lengths of all windows."""
        return float(self._inside[-1])

    def inside(self, start: Floats, end: Floats) -> Floats:
        """Return the length of each interval that lies inside the windows, in seconds."""
        length: Floats = np.interp(end, self._edges, self._inside) - np.interp(start, self._edges, self._inside)
        return length.clip(min=0.0)


def union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the union of intervals as intervals that do not touch, in order."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > end[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], end[closes]


def covered(windows: Windows, start: Floats, end: Floats) -> float:
    """Return the time inside the windows during which at least one interval runs, in seconds."""
    return float(windows.inside(*union(start, end)).sum())


def exclusive(
    windows: Windows, spans: Mapping[str, tuple[Floats, Floats]], priority: Sequence[str]
) -> dict[str, float]:
    """Return the seconds of each kind inside the windows; where several kinds run, the time counts for the first."""
    found: dict[str, float] = {}
    before = 0.0
    start = end = np.empty(0)
    for kind in priority:
        if kind in spans and len(spans[kind][0]):
            start, end = union(np.concatenate([start, spans[kind][0]]), np.concatenate([end, spans[kind][1]]))
        total = float(windows.inside(start, end).sum())
        found[kind] = max(0.0, total - before)
        before = total
    return found
