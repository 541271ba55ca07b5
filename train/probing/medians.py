"""Median of samples with its 95 % interval by order statistics, which assumes no distribution."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE_PERCENT = 95
LEAST_SAMPLES = 6
"""Fewest samples whose range is a 95 % interval of the median: 1 - 2 / 2**6 = 96.9 %; of five it is 93.8 %."""


@dataclass(frozen=True)
class Median:
    """Median of seconds, and the interval that holds the true median with at least 95 %."""

    seconds: float
    low: float
    high: float

    @property
    def spread_percent(self) -> float:
        """Half width of the interval in percent of the median."""
        return 100 * (self.high - self.low) / 2 / self.seconds


def median(samples: Sequence[float]) -> Median:
    """Return the median of at least one sample; of fewer than LEAST_SAMPLES the interval is the range.

    The number of samples below the true median is binomial with p = 1/2, so the k-th smallest and k-th largest sample
    enclose it with probability 1 - 2 P(B < k). Source: David and Nagaraja, Order Statistics, 3rd edition, 2003, 7.1;
    for measured times Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1.
    """
    ordered = sorted(samples)
    k = order(len(ordered))
    return Median(statistics.median(ordered), ordered[k - 1], ordered[-k])


def order(count: int) -> int:
    """Return the largest k, from 1, whose interval between k-th smallest and k-th largest sample has 95 %."""
    below, cases, k = 0, 1, 0  # of 2**count equally likely cases, those with fewer than k + 1 samples below the median
    while True:
        below += cases
        if 200 * below > (100 - CONFIDENCE_PERCENT) * 2**count or k + 1 > count // 2:
            return max(1, k)
        cases = cases * (count - k) // (k + 1)
        k += 1
