"""The time of one call on this device, by torch.utils.benchmark, which waits for the device around each block of calls.

A block is long enough that this wait is at most 1e-4 of it (torch/utils/benchmark/utils/timer.py, blocked_autorange).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.benchmark import Timer

LEAST_BLOCKS = 6
DIGITS = 4


def measured(function: Callable[[], Any], seconds: float) -> list[float]:
    """Return the seconds of a call in each block, LEAST_BLOCKS or more, after some that do not count."""
    timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    times: list[float] = []
    while len(times) < LEAST_BLOCKS:
        times += timer.blocked_autorange(min_run_time=seconds).times
    return times


def spread_percent(times: Sequence[float]) -> float:
    """Return half of the range of the middle half of the times, in percent of their median."""
    low, middle, high = statistics.quantiles(times)
    return round(50 * (high - low) / middle, 2)


def short(value: float) -> float:
    """Return a number with DIGITS significant digits."""
    return float(f"{value:.{DIGITS}g}")


def reason(error: Exception) -> str:
    """Return why something cannot be measured, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
