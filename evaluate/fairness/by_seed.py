"""Losses of two sides, compared seed by seed: another seed draws other weights and data, and so has another loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

Losses = Sequence[float]


def matched(a: Losses, b: Losses, seeds_a: Sequence[Any], seeds_b: Sequence[Any]) -> list[tuple[float, float]]:
    """Return the mean loss of both sides for each seed, from one loss and one seed for each run.

    A single pair of means over all runs, if a seed is unknown or the two sides do not have the same seeds.
    """
    if None in (*seeds_a, *seeds_b) or set(seeds_a) != set(seeds_b):
        return [(statistics.fmean(a), statistics.fmean(b))]
    return [(_mean(a, seeds_a, seed), _mean(b, seeds_b, seed)) for seed in dict.fromkeys(seeds_a)]


def largest_difference(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the largest difference of the two losses of a seed, relative to the smaller one."""
    return max(abs(right - left) / min(left, right) for left, right in pairs)


def half_interval(pairs: Sequence[tuple[float, float]]) -> float:
    """Return half the 90 % interval of the mean difference (paired t-test), from at least two seeds."""
    from scipy.special import stdtrit

    differences = [right - left for left, right in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return float(stdtrit(len(differences) - 1, 0.95)) * error


def _mean(losses: Losses, seeds: Sequence[Any], wanted: Any) -> float:
    return statistics.fmean(loss for loss, seed in zip(losses, seeds, strict=True) if seed == wanted)
