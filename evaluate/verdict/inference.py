"""Statistical inference: the ratio of two throughputs, an interval that is valid with few runs, and the verdict.

The unit is the run (one process restart), or the machine if both sides have several. Restarts of one machine differ by
more than the steps of one run can show, so steps enter no spread: a side with a single run has none, and no spread is
ever borrowed from the other side, because the two may vary differently. All computations use the logarithm of
throughput, so that the ratio of a to b is the inverse of that of b to a. evaluate/metrics/intervals.py has the
formula; tests/evaluate/verdict/simulate.py shows how often the intervals cover the truth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evaluate.checks.recorded import grouped
from evaluate.metrics import intervals
from evaluate.metrics.defaults import BAND

CONFIDENCE = 0.95
"""Share of the trials in which an interval covers the truth: 93 to 98 % in the cells of docs/compare.md."""
INTERVAL_LEVEL, LEVEL = 0.04, 0.03
"""Levels of the interval and of the test. They are below 1 - CONFIDENCE, because noise that is not normal costs up to
two hundredths: equal sides must be called different in at most 5 % of the trials of every cell, not on average."""
AUTO_SELECTION = 2.5
"""Chance of a false difference with RUNS=auto over that with a fixed number of runs, at the most: the rule stops where
the spread is small by chance. Both levels are divided by it (tests/evaluate/verdict/simulate.py)."""
ADDED_SELECTION = 40.0
"""The same for runs that were added after others had been judged. Of 3 runs a side and one more each time until a
difference is found, at most 10, 4.9 % end with a false one (tests/evaluate/verdict/simulate.py); without it 9 to 11 %.
"""
LEAST_RUNS = 3
"""Runs that faster and slower need on each side. Two give no idea of the spread: Student's quantile is 12.7."""
LEAST_SPREAD = 3e-6
"""Runs whose throughput agrees this closely are copies: restarts differ by 2e-4 or more (MLPerf Training v5.1)."""
NOISE = 3.0
"""Machines that are further apart than this many standard deviations of a run are different."""
FASTER, SLOWER, TIE, UNDECIDED = "faster", "slower", "tie", "undecided"
PRODUCTS, THESE_MACHINES, THESE_RUNS = "these products", "these machines", "these runs"


@dataclass(frozen=True)
class Run:
    """One run: its machine, and the logarithm of its throughput."""

    machine: str
    log_throughput: float


@dataclass(frozen=True)
class Spread:
    """The variance of a side's mean, with its degrees of freedom and the number of values behind it."""

    variance: float
    degrees: float
    values: int
    """Machines if the interval applies to products; runs otherwise."""


@dataclass(frozen=True)
class Estimate:
    """The ratio of b to a, with its interval."""

    ratio: float
    low: float | None
    """Ends of the interval; None if a side has no spread of its own."""
    high: float | None
    p_value: float | None
    """Two-sided p-value of no difference."""
    degrees_of_freedom: float | None
    """Satterthwaite's; evaluate/metrics/intervals.py has the critical value."""
    scope: str
    """Population of the interval: products, these machines, or these runs."""
    runs: tuple[int, int]
    machines: tuple[int, int]
    spreads: tuple[Spread | None, Spread | None] = (None, None)
    selection: float = 1.0
    """Number by which both levels were divided, because runs or layouts were chosen by their own speed."""
    sides_without_spread: tuple[tuple[int, str], ...] = ()
    """Each side (0 for a, 1 for b) without a spread of its own, and the reason."""


def estimate(a: Sequence[Run], b: Sequence[Run], selection: float = 1.0) -> Estimate:
    """Return the throughput of `b` over that of `a`, of one run or more on each side.

    With two machines or more on both sides, the unit is the machine and the interval applies to such machines in
    general. Otherwise the unit is the run and the interval applies to these machines. There is no interval if a side
    has a single run, or runs that do not differ. `selection` is the number of choices by speed that made these sides,
    1 for none: the number of layouts from which the fastest was taken, times AUTO_SELECTION or ADDED_SELECTION. The
    level of the interval is divided by it and the p-value multiplied (Bonferroni).
    """
    machines_a, machines_b = _by_machine(a), _by_machine(b)
    is_general = len(machines_a) > 1 and len(machines_b) > 1
    spread_a, spread_b = _spread(machines_a, is_general), _spread(machines_b, is_general)
    difference = _level(machines_b) - _level(machines_a)
    found = Estimate(
        ratio=_exp(difference),
        low=None,
        high=None,
        p_value=None,
        degrees_of_freedom=None,
        scope=PRODUCTS if is_general else THESE_MACHINES,
        runs=(len(a), len(b)),
        machines=(len(machines_a), len(machines_b)),
        spreads=(spread_a, spread_b),
        selection=selection,
    )
    reasons = enumerate((_why_no_spread(a, spread_a), _why_no_spread(b, spread_b)))
    without = tuple((side, why) for side, why in reasons if why)
    if without or spread_a is None or spread_b is None:
        return replace(found, scope=THESE_RUNS, sides_without_spread=without)
    # from here on each side has a spread of its own; none is ever borrowed
    variances, degrees = (spread_a.variance, spread_b.variance), (spread_a.degrees, spread_b.degrees)
    critical = float(intervals.critical_value(INTERVAL_LEVEL / selection, variances, degrees))
    half = critical * math.sqrt(sum(variances))
    return replace(
        found,
        low=_exp(difference - half),
        high=_exp(difference + half),
        p_value=min(1.0, selection * intervals.p_value(difference, variances, degrees)),
        degrees_of_freedom=float(intervals.degrees_of_freedom(variances, degrees)),
    )


def level(runs: Sequence[Run]) -> float:
    """Return the throughput of a side: the geometric mean of its runs, or of its machines, as in a ratio."""
    return _exp(_level(_by_machine(runs)))


def decide(found: Estimate, adjusted_p: float | None, band: float = BAND) -> tuple[str, str]:
    """Return the word on b against a, and the reason why the evidence allows no more.

    `adjusted_p` is the p-value after the correction for the number of comparisons (`adjusted`).
    Faster and slower: at least LEAST_RUNS runs on each side, beyond the band, and not by chance. Tie: the whole
    interval lies in the band. Undecided: everything else.
    """
    if adjusted_p is None or found.low is None or found.high is None:
        return UNDECIDED, "there is no interval, because a side has no spread of its own"
    # both are needed: a difference may be certain and too small to matter
    is_difference = adjusted_p < LEVEL and is_beyond(found.ratio, band)
    if is_difference and min(found.runs) >= LEAST_RUNS:
        # the end of the interval that is nearer to 1
        inner = found.low if found.ratio > 1 else 1 / found.high
        reason = "" if inner > 1 + band else f"the interval reaches into the band of {band:.1%}"
        return FASTER if found.ratio > 1 else SLOWER, reason
    if 1 / (1 + band) <= found.low and found.high <= 1 + band:
        return TIE, f"the whole interval lies in the band of {band:.1%}"
    if is_difference:
        return UNDECIDED, f"faster and slower need at least {LEAST_RUNS} runs on each side"
    if not is_beyond(found.ratio, band):
        return UNDECIDED, f"no difference beyond {band:.1%} was found, and one is not ruled out"
    # before the correction it would have been a difference
    if found.p_value is not None and found.p_value < LEVEL:
        reason = "a difference this large may be chance among this many comparisons (Holm's correction)"
    elif found.low <= 1 <= found.high:
        reason = "a difference this large may be chance with so few runs"
    else:
        reason = f"the interval only just excludes 1: faster and slower need p below {LEVEL:g}"
    return UNDECIDED, reason


def is_beyond(ratio: float, band: float) -> bool:
    """Return whether a ratio lies beyond the band; any ratio but 1 does with a band of 0."""
    return abs(math.log(ratio)) > math.log1p(band) or (band == 0 and ratio != 1)


def adjusted(estimates: Sequence[Estimate]) -> list[float | None]:
    """Return the p-values adjusted for their number (Holm, Scandinavian Journal of Statistics 6, 1979), in their order;
    an estimate without one stays None and does not count."""
    known = sorted((found.p_value, place) for place, found in enumerate(estimates) if found.p_value is not None)
    by_place: list[float | None] = [None] * len(estimates)
    largest = 0.0
    for rank, (p_value, place) in enumerate(known):
        # a larger p-value never becomes the smaller one
        largest = max(largest, min(1.0, (len(known) - rank) * p_value))
        by_place[place] = largest
    return by_place


def remark_on_machines(name: str, runs: Sequence[Run]) -> str:
    """Return a remark if the machines of a side differ by more than their runs; empty otherwise.

    A machine counts by the median of its runs. Its noise is unknown if it has a single run.
    """
    middles, spreads = [], []
    for machine in _by_machine(runs):
        logs = [run.log_throughput for run in machine]
        middles.append(statistics.median(logs))
        if len(logs) > 1:
            spreads.append(statistics.stdev(logs))
    widest = max(middles) - min(middles)
    if not spreads or widest <= NOISE * max(spreads):
        return ""
    return (
        f"{name}: its {len(middles)} machines differ by {math.expm1(widest):.1%} and the runs of one by "
        f"{max(spreads):.2%} at most, so a claim about the product needs several machines on both sides"
    )


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))


def _by_machine(runs: Iterable[Run]) -> list[list[Run]]:
    return list(grouped(runs, lambda run: run.machine).values())


def _mean(runs: Sequence[Run]) -> float:
    return float(np.mean([run.log_throughput for run in runs]))


def _level(machines: Sequence[Sequence[Run]]) -> float:
    """Return the mean logarithm of a side: of its machines, each the mean of its runs."""
    return statistics.fmean(map(_mean, machines))


def _spread(machines: Sequence[Sequence[Run]], is_general: bool) -> Spread | None:
    """Return the spread of the mean of a side's machines; None for a single run.

    About these machines: from the runs of each machine. If a machine has a single run, it is taken from the machines
    instead, which contains the spread between machines too and is too large rather than too small.
    """
    if not is_general and all(len(runs) > 1 for runs in machines):
        parts, weights = [], []
        for runs in machines:
            variance = float(np.var([run.log_throughput for run in runs], ddof=1))
            part = variance / len(runs) / len(machines) ** 2
            parts.append(part)
            weights.append(part**2 / (len(runs) - 1))
        total, weight, count = math.fsum(parts), math.fsum(weights), sum(map(len, machines))
        # Satterthwaite's degrees of freedom; where nothing varies, those of equal variances
        degrees = total**2 / weight if weight else count - len(machines)
        return Spread(total, degrees, count)
    if len(machines) > 1:
        variance = float(np.var([_mean(runs) for runs in machines], ddof=1))
        return Spread(variance / len(machines), len(machines) - 1, len(machines))
    return None


def _why_no_spread(runs: Sequence[Run], spread: Spread | None) -> str:
    if spread is None:
        return "a single run has no spread"
    if math.sqrt(spread.variance * spread.values) < LEAST_SPREAD:
        return f"its {len(runs)} runs are equally fast to six digits, as copies of one run are"
    return ""
