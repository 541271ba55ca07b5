"""Remarks on the order of the runs of a pair: one side after the other, runs that resemble the one before, runs that
were measured again.

The interval takes the runs for independent. A machine that becomes slower while one side is measured after the other
looks like a difference between them; runs in turns (as RUNS and several frameworks in one command give them) do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from evaluate.checks.recorded import grouped, interval, job_of, machines
from evaluate.metrics import steady
from evaluate.metrics.steady import tokens_per_second_per_gpu
from evaluate.verdict.pairs import Pair
from utils.results.schema import Result

CHANCE = 0.05
ONE_SIDED = 1.645
"""95 % quantile of the normal distribution; a correlation of n independent neighbours has the deviation 1 / sqrt(n)."""


def remarks(pair: Pair) -> Iterator[str]:
    """Yield a remark for each order of the runs that the interval does not cover."""
    for name, results in pair.sides:
        again = ", ".join(_again(results))
        if again:
            yield f"{name}: {again}"
    sides = [(name, _in_order(results)) for name, results in pair.sides]
    for name, runs in sides:
        alike = _correlation([rate for _, rate in runs])
        if alike is not None:
            yield f"{name}: runs are like the ones before them (correlation {alike:.1f}), so the interval is too narrow"
    hosts = {name for results in pair.counted for result in results for name in machines(result)}
    # on two machines time and machine cannot be told apart, and without a start there is no order
    if len(hosts) != 1 or not all(runs for _, runs in sides):
        return
    (first, before), (second, after) = sorted(sides, key=lambda side: side[1][0])
    if before[-1][0] < after[0][0]:
        drift = _drift([before, after])
        drifts = f", which drifts: {drift:+.1%} between them" if drift else ""
        yield f"all runs of {first} were before those of {second} on one machine{drifts}; run them in turns"


def _again(side: Sequence[Result]) -> Iterator[str]:
    """Yield each run of a side that is not its first attempt, or that was measured after a run of a higher number."""
    first: list[Result] = []
    for result in side:
        if result["attempt"] > 1:
            yield f"run {result['run']} is attempt {result['attempt']}"
        elif interval(result):
            first.append(result)
    for job in grouped(first, job_of).values():
        highest = 0
        for result in sorted(job, key=lambda one: interval(one) or ()):
            if result["run"] < highest:
                yield f"run {result['run']} was measured after a run of a higher number"
            highest = max(highest, result["run"])


def _in_order(side: Sequence[Result]) -> list[tuple[float, float]]:
    """Return start in hours and logarithm of the throughput of each run; empty if a start is not known."""
    runs = []
    for result in side:
        times, rate = interval(result), tokens_per_second_per_gpu(result)
        if times is None or not rate:
            return []
        runs.append((times[0].timestamp() / 3600, math.log(rate)))
    return sorted(runs)


def _drift(sides: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Return the share by which a drift of the machine would make the second side differ from the first.

    The drift is the common slope of both sides over time. None if chance alone explains such a slope in CHANCE of the
    pairs or more, or if there are too few runs for a slope.
    """
    from scipy.special import stdtr

    # each side around its own mean, so that the difference of the sides is no part of the slope
    centred = [np.subtract(side, np.mean(side, axis=0)) for side in sides]
    hours, logs = np.concatenate(centred).T
    # two means and one slope are estimated
    degrees, square = len(hours) - 3, float(hours @ hours)
    if degrees < 1 or not square:
        return None
    slope = float(hours @ logs) / square
    residuals = logs - slope * hours
    # 1e-18: values without noise would divide by 0
    error = math.sqrt(max(1e-18, float(residuals @ residuals) / degrees / square))
    if 2 * float(stdtr(degrees, -abs(slope) / error)) >= CHANCE:
        return None
    before, after = (float(np.mean([start for start, _ in side])) for side in sides)
    return math.expm1(slope * (after - before))


def _correlation(logs: Sequence[float]) -> float | None:
    """Return the correlation of neighbours if it is not by chance; else None, as always of fewer than seven runs."""
    if not logs:
        return None
    alike = steady.correlation(np.subtract(logs, np.mean(logs)))
    return alike if alike > ONE_SIDED / math.sqrt(len(logs)) else None


# The check that each run of a pair has a steady state, which a verdict needs.
#
# A run whose last level of step times is too short has no steady state, and a pair with such a run is undecided. A run
# that drifts has no single level: its mean depends on the number of steps. It counts only if the verdict would be the
# same with each drifting run at the level on which its steps end.

WOULD_DECIDE = "with more steps, or without other work on the machine"


def unsteady(sides: Iterable[tuple[str, Sequence[Result]]]) -> tuple[list[str], list[str]]:
    """Return the names of the runs without a steady level, and the names of those whose steady steps drift.

    `sides` has the name and the runs of each side.
    """
    without: list[str] = []
    drifting: list[str] = []
    for name, side in sides:
        for result in side:
            part, run = steady.of_result(result), f"run {result['run']} of {name}"
            if part is None or part.label == steady.NO_STEADY_STATE:
                count = len(result["step_times"]) - part.first if part else 0
                if count < steady.LEAST_STEPS:
                    run += f" ({count} steps after the first ones, {steady.LEAST_STEPS} are the least)"
                without.append(run)
            elif part.is_drifting:
                drifting.append(run)
    return without, drifting


def shift_to_the_end(result: Result) -> float:
    """Return the change of log throughput from the mean of a drifting run to its end; 0 for a run that is steady."""
    part = steady.of_result(result)
    if part is None or part.drift is None or not part.is_drifting:
        return 0.0
    return -math.log1p(part.drift) / 2  # the mean lies in the middle of the drift


def listed(runs: Sequence[str], most: int = 3) -> str:
    """Return names as words, `most` of them at the most."""
    text = ", ".join(runs[:most])
    return f"{text} and {len(runs) - most} more" if len(runs) > most else text
