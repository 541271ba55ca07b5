"""The steady part of a run: the last level of its step times, found by change points.

The method is that of Barrett et al., "Virtual Machine Warmup Blows Hot and Cold" (OOPSLA 2017), on the logarithm of
step times: find change points as PELT does, join segments whose means hardly differ from the last
one to it, and label the run. A single odd step does not move a change point; it is flagged and never removed.

Every figure of a report uses the steps found here. They follow from the raw step times and the rule of
`utils.results.performance.warmup_steps` alone, whatever number of steps a result's own summary left out.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from utils.errors import counted
from utils.results.performance import warmup_steps
from utils.results.schema import Result

FLAT, WARM_UP, SLOW_DOWN, NO_STEADY_STATE = "flat", "warm-up", "slow-down", "no steady state"
EQUAL_LEVELS = 0.01
"""Two levels of step time that differ by less than this, relative, are one level."""
LEAST_STEPS = 10
LEAST_SHARE = 0.25
"""A last level shorter than this share of the run, or than LEAST_STEPS, is no steady state."""
PENALTY = 15.0
"""Times log(n) and the variance of a step: Barrett et al., section 4.1."""
SHORTEST_SEGMENT = 5
SHORTEST_STEP_SECONDS = 1e-6
FENCE = 3.0
"""Interquartile ranges beyond the quartiles: Tukey's "far out" values."""
DRIFT_BLOCKS = 50
DRIFT_LIMIT = 0.01
"""Relative change of the step time over the steady part, above which a run is drifting."""
MOST_RANGES = 3
"""With more different ranges of steady steps, a text has only the first and the last beginning."""


@dataclass(frozen=True)
class Steady:
    """The steady part of a run, as indices of its step times."""

    first: int
    """Index of the first steady step; without a steady state, of the first step after those that never count."""
    label: str
    outliers: tuple[int, ...]
    """Indices of steady steps far from the others; they count like the others."""
    drift: float | None
    """Relative change from the first steady step to the last; None for fewer than LEAST_STEPS steps."""

    @property
    def is_drifting(self) -> bool:
        """True if the steady steps keep becoming slower or faster, as on a chip that heats up."""
        return self.drift is not None and abs(self.drift) > DRIFT_LIMIT


def of_result(result: Result) -> Steady | None:
    """Return the steady part of a result's steps; None if it has none, or a step time that no step can have."""
    times = result["step_times"]
    least = warmup_steps(len(times))
    # a step of no time has no logarithm, and no GPU makes one
    if len(times) <= least or min(times) < SHORTEST_STEP_SECONDS:
        return None
    return find(tuple(times), least)


def step_times(result: Result) -> list[float]:
    """Return the steady step times in seconds; empty for a run without steady steps."""
    part = of_result(result)
    return list(result["step_times"][part.first :]) if part else []


def steps_text(results: Sequence[Result], opening: str = "steps ") -> str:
    """Return the steady steps by their numbers: `steps 11 to 100`, or each range with its number of runs."""
    ranges: Counter[tuple[int, int]] = Counter()
    for result in results:
        part = of_result(result)
        if part:
            ranges[result["steps"][part.first], result["steps"][-1]] += 1
    if not ranges:
        return "no steady steps"
    if len(ranges) > MOST_RANGES:
        firsts, lasts = zip(*ranges, strict=True)
        return f"{opening}from {min(firsts)} to {max(firsts)} on, of {max(lasts)}"
    texts = []
    for (first, last), runs in sorted(ranges.items()):
        text = f"{first} to {last}"
        texts.append(f"{text} ({counted(runs, 'run')})" if len(ranges) > 1 else text)
    return opening + ", ".join(texts)


@lru_cache(maxsize=4096)  # validation, verdict and report all need the same run
def find(step_times: tuple[float, ...], least: int) -> Steady:
    """Return the steady part of a run's step times (seconds, above 0); the first `least` steps never count."""
    logs = np.log(np.asarray(step_times[least:], dtype=np.float64))
    if len(logs) < 2 * SHORTEST_SEGMENT:
        return Steady(least, NO_STEADY_STATE, (), None)
    cut = clipped(logs, SHORTEST_SEGMENT)
    ends = segment_ends(cut, SHORTEST_SEGMENT, PENALTY)
    starts = [0, *ends[:-1]]
    means = [float(cut[start:end].mean()) for start, end in zip(starts, ends, strict=True)]
    tail = len(means) - 1
    # levels next to the last one that hardly differ from it belong to it
    while tail and abs(means[tail - 1] - means[-1]) <= EQUAL_LEVELS:
        tail -= 1
    is_short = len(logs) - starts[tail] < max(LEAST_STEPS, LEAST_SHARE * len(logs))
    first = 0 if is_short else starts[tail]
    if is_short:
        label = NO_STEADY_STATE
    elif any(mean < means[-1] - EQUAL_LEVELS for mean in means[:tail]):
        label = SLOW_DOWN
    else:
        label = WARM_UP if tail else FLAT
    steady = logs[first:]
    low, high = np.quantile(steady, (0.25, 0.75))
    # equal steps have no spread, and rounding is no outlier
    width = FENCE * max(high - low, 1e-9)
    outliers = np.flatnonzero((steady < low - width) | (steady > high + width)) + least + first
    return Steady(least + first, label, tuple(outliers.tolist()), _drift(steady))


def _drift(logs: Floats) -> float | None:
    """Return the relative change over the part, by the median slope between all pairs of blocks (Theil and Sen)."""
    if len(logs) < LEAST_STEPS:
        return None
    parts = np.array_split(logs, min(DRIFT_BLOCKS, len(logs)))
    medians = np.array([statistics.median(part.tolist()) for part in parts])
    lengths = np.array([len(part) for part in parts])
    places = np.cumsum(lengths) - lengths / 2  # the middle of each block, in steps
    before, after = np.triu_indices(len(parts), 1)
    slope = float(np.median((medians[after] - medians[before]) / (places[after] - places[before])))
    return float(np.expm1(slope * len(logs)))


# Change points in a row of values, as the steady state of a run and the history of a machine use them.
#
# Segments of equal mean are found after single odd values have been clipped.

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
    # half the variance of differences of neighbours is the variance of a value, whatever its level
    variance = float(np.var(np.diff(values))) / 2 + 1e-12
    ends = _division(values, shortest, scale * variance)
    if len(ends) == 1:
        return ends
    # the first division shows how neighbours are correlated, which noise around one level only appears to be
    residuals = np.concatenate([part - part.mean() for part in np.split(values, ends[:-1])])
    # what is left after the first division is the noise of a value
    power = float(residuals @ residuals) / len(values) + 1e-12
    return _division(values, shortest, scale * power * inflation(residuals))


def _division(values: Floats, shortest: int, penalty: float) -> list[int]:
    """Return the ends of the segments with the least sum of squares around their means, plus `penalty` for each.

    The best division up to each value follows from those before it (optimal partitioning: Jackson et al., IEEE Signal
    Processing Letters 12, 2005; PELT, Killick et al. 2012, finds the same). Time and memory grow with the square and
    the number of values: 2 ms for 500.
    """
    count = len(values)
    centred = values - values.mean()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    lengths = np.arange(count, 0.0, -1.0)
    best = np.full(count + 1, np.inf)
    start_of = np.zeros(count + 1, dtype=int)
    best[0] = -penalty  # the first segment is free
    for end in range(shortest, count + 1):
        starts = end - shortest + 1
        # the sum of squares of a segment around its mean: sum(x^2) - sum(x)^2 / length
        means = (sums[end] - sums[:starts]) ** 2 / lengths[count - end :][:starts]
        costs = best[:starts] - squares[:starts] - means
        start_of[end] = costs.argmin()
        best[end] = costs[start_of[end]] + squares[end] + penalty
    ends = [count]
    while start_of[ends[-1]]:
        ends.append(int(start_of[ends[-1]]))
    return ends[::-1]


def inflation(residuals: Floats) -> float:
    """Return the factor on the variance of a mean that follows from the correlation of neighbours, at least 1."""
    known = min(HIGHEST_CORRELATION, max(0.0, correlation(residuals)))
    return (1 + known) / (1 - known)


def correlation(residuals: Floats) -> float:
    """Return the correlation of neighbours in a row of differences from a mean; 0 if nothing varies."""
    power = float(residuals @ residuals)
    return float(residuals[1:] @ residuals[:-1]) / power if power else 0.0


# The throughput of a run over its steady steps, as every figure of a report uses it.


def tokens_per_second(result: Result) -> float | None:
    """Return the tokens of the steady steps over their seconds, all GPUs together; None without steady steps."""
    times, config = step_times(result), result["training_config"]
    if not times:
        return None
    tokens: int = config["global_batch_size"] * config["sequence_length"]
    return tokens * len(times) / math.fsum(times)


def tokens_per_second_per_gpu(result: Result) -> float | None:
    """Return `tokens_per_second` over the number of GPUs (of ranks on a machine without GPUs)."""
    rate = tokens_per_second(result)
    gpus: int | None = result["training_config"]["num_gpus"]
    return rate / gpus if rate is not None and gpus else None
