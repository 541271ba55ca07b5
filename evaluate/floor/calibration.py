"""The times of a profiled step without the cost of the profiler.

A profiled step is longer than the others of its run. The excess is removed in this order, never below 0:

1. The trace's step less the measured step is time between two steps: it is taken from `idle`.
2. On a GPU the profiler slows the host, and the device waits: the rest is taken from `idle`.
3. Each recorded event costs the same. torch.profiler takes the start of an operator as the last thing before it and
   its end as the first thing after it (torch/csrc/profiler/collection.cpp), so an event costs time of the operator
   around it, or idle time. The rest is taken from the kinds in proportion to the number of such events.
4. What is still left is taken from all kinds in proportion to their times.

The result sums to the unprofiled step of the same run. A trace that is not longer is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from utils.kinds import IDLE


def calibrated(
    kinds: Mapping[str, float], recorded: Mapping[str, float], between: float, wanted: float, *, is_of_host: bool
) -> dict[str, float]:
    """Return the seconds of each kind of a profiled step, so that they sum to `wanted` seconds.

    `recorded` has the number of events that cost time of each kind, `between` the seconds between two steps. The kinds
    are returned unchanged if they sum to `wanted` or less.
    """
    left = dict(kinds)

    def excess() -> float:
        return math.fsum(left.values()) - wanted

    if excess() > 0:
        _take(left, {IDLE: 1.0}, min(excess(), max(0.0, between) if is_of_host else excess()))
    for shares in (recorded, dict(left)):
        if excess() > 0:
            _take(left, shares, excess())
    return left


def _take(left: dict[str, float], shares: Mapping[str, float], seconds: float) -> None:
    """Take `seconds` in proportion to `shares`, and from the others what a kind does not have."""
    open_ = {kind for kind, share in shares.items() if share > 0 and left.get(kind, 0.0) > 0}
    while open_ and seconds > 0:
        each = seconds / math.fsum(shares[kind] for kind in open_)
        short = {kind for kind in open_ if left[kind] <= each * shares[kind]}
        for kind in short or open_:
            taken = left[kind] if kind in short else each * shares[kind]
            left[kind] -= taken
            seconds -= taken
        open_ = open_ - short if short else set()
