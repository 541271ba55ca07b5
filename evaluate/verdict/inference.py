"""Is one side faster? A ratio of throughputs with an interval that holds with few runs, and what may be said of it.

The unit is the run (one process restart), or the machine where both sides have several: the steps of one run follow
one another and are never counted as independent. Everything is done on the logarithm of throughput, so that the ratio
a to b is the inverse of b to a.

With few values a percentile bootstrap over runs covers the truth too seldom (0.69 for two machines a side, nominal
0.95), so the interval is Welch's (Biometrika 34, 1947), and a verdict asks for a little more than the interval shows;
tests/evaluate/verdict/test_inference.py simulates both. A side with a single run has no spread between runs: its
interval comes from blocks of steps (circular block bootstrap, Politis and Romano 1992) and is about that run alone.
"""

from __future__ import annotations

import math
import statistics as descriptive
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEVEL = 0.035
"""A verdict of faster or slower asks for a smaller p-value than this. Not 0.05: Welch's test is an approximation, and
equal sides shall be called different in at most 5 % of 1,000 trials, not in 5 % on average."""
BAND = 0.03
"""Differences up to this, relative, do not matter in practice; to be stated before anything is measured."""
RESTARTS = 0.013
"""Two runs of one machine differ by less, 997 times of 1,000: three deviations of the difference of two, at the 0.3 %
between restarts that most systems of MLPerf Training v5.1 stay under. A single run a side knows nothing better."""
FASTER, SLOWER, TIE = "faster", "slower", "tie"
PRODUCTS, THESE_MACHINES, THESE_RUNS = "these products", "these machines", "these two runs"
RESAMPLES = 1000


@dataclass(frozen=True)
class Run:
    """One run: its machine, the logarithm of its throughput, and its steady step times in seconds."""

    machine: str
    log_throughput: float
    step_times: tuple[float, ...] = ()
    """Needed where a machine has this run only."""


@dataclass(frozen=True)
class Estimate:
    """The ratio of b to a, with its interval."""

    ratio: float
    low: float
    high: float
    p_value: float
    """Two-sided, of no difference."""
    degrees_of_freedom: float
    scope: str
    """What the interval is about: products, these machines, or these two runs."""
    runs: tuple[int, int]
    machines: tuple[int, int]

    @property
    def is_one_run(self) -> bool:
        """Whether a side has a single run, so that nothing is known of the spread between runs."""
        return 1 in self.runs


@dataclass(frozen=True)
class Verdict:
    """What may be said: the word and, in words, why not more."""

    word: str
    reason: str


@dataclass(frozen=True)
class _Part:
    """A share of the variance of a mean, with its degrees of freedom."""

    variance: float
    degrees_of_freedom: float


def estimate(a: Sequence[Run], b: Sequence[Run], confidence: float = CONFIDENCE) -> Estimate:
    """Return throughput of `b` over that of `a`; raises ValueError for a side without runs.

    With two machines or more on both sides the unit is the machine, and the interval is about such machines in
    general; otherwise it is the run, and the interval is about the machines at hand.
    """
    sides = [_by_machine(a), _by_machine(b)]
    if not all(sides):
        raise ValueError(f"got {len(a)} and {len(b)} runs, wanted at least one on both sides")
    is_general = min(map(len, sides)) > 1
    means = [float(np.mean([_mean(runs) for runs in side])) for side in sides]
    parts = [part for side in sides for part in (_between_machines(side) if is_general else _within_machines(side))]
    difference = means[1] - means[0]
    variance = sum(part.variance for part in parts)
    degrees = _degrees_of_freedom(parts, variance)
    half = _quantile(degrees, confidence) * math.sqrt(variance)
    is_single = not is_general and 1 in (len(a), len(b))
    return Estimate(
        ratio=math.exp(difference),
        low=math.exp(difference - half),
        high=math.exp(difference + half),
        p_value=_p_value(difference, variance, degrees),
        degrees_of_freedom=degrees,
        scope=PRODUCTS if is_general else THESE_RUNS if is_single else THESE_MACHINES,
        runs=(len(a), len(b)),
        machines=(len(sides[0]), len(sides[1])),
    )


def judge(found: Estimate, adjusted_p: float, band: float = BAND) -> Verdict:
    """Return the verdict of b against a: beyond the band and not by chance, or a tie.

    `adjusted_p` is `found.p_value` after `holm` over all comparisons that were made.
    """
    least = max(band, RESTARTS) if found.is_one_run else band
    is_beyond = abs(math.log(found.ratio)) > math.log1p(least) or (least == 0 and found.ratio != 1)
    if adjusted_p < LEVEL and is_beyond:
        inner = found.low if found.ratio > 1 else 1 / found.high
        reason = "" if inner > 1 + band else f"the interval reaches into the band of {band:.1%}"
        return Verdict(FASTER if found.ratio > 1 else SLOWER, reason)
    if is_within(found, band):
        return Verdict(TIE, f"the whole interval lies in the band of {band:.1%}")
    if is_beyond:
        return Verdict(TIE, "a difference this large may be chance with so few runs: more runs would tell")
    return Verdict(TIE, f"no difference beyond {least:.1%} was found, and one is not ruled out: more runs would tell")


def is_within(found: Estimate, band: float) -> bool:
    """Return whether the whole interval lies in the band, so that a difference that matters is ruled out."""
    return 1 / (1 + band) <= found.low and found.high <= 1 + band


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm, Scandinavian Journal of Statistics 6, 1979), in their order."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def variance_within(step_times: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the variance of the logarithm of a run's mean step time, and its degrees of freedom.

    Circular block bootstrap in blocks of sqrt(n) steps, so that what a step has from the one before stays together; as
    many degrees of freedom as whole blocks, less one. The generator has a fixed seed: the same run, the same answer.
    """
    times = np.asarray(step_times, dtype=np.float64)
    length = max(1, math.ceil(math.sqrt(len(times))))
    count = math.ceil(len(times) / length)
    if count < 2:
        raise ValueError(f"got {len(times)} steady steps of a single run, wanted at least 3; train more steps")
    sums = np.convolve(np.concatenate([times, times[: length - 1]]), np.ones(length), "valid")
    starts = np.random.default_rng(seed).integers(0, len(times), (RESAMPLES, count))
    return float(np.var(np.log(sums[starts].mean(axis=1)), ddof=1)), count - 1.0


def _by_machine(runs: Iterable[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.machine, []).append(run)
    return list(found.values())


def _mean(runs: Sequence[Run]) -> float:
    return float(np.mean([run.log_throughput for run in runs]))


def _between_machines(side: list[list[Run]]) -> list[_Part]:
    means = [_mean(runs) for runs in side]
    return [_Part(float(np.var(means, ddof=1)) / len(means), len(means) - 1.0)]


def _within_machines(side: list[list[Run]]) -> list[_Part]:
    parts = []
    for runs in side:
        if len(runs) > 1:
            variance = float(np.var([run.log_throughput for run in runs], ddof=1)) / len(runs)
            degrees = len(runs) - 1.0
        else:
            variance, degrees = variance_within(runs[0].step_times)
        parts.append(_Part(variance / len(side) ** 2, degrees))
    return parts


def _degrees_of_freedom(parts: Sequence[_Part], variance: float) -> float:
    """Return the degrees of freedom of a sum of independent variances.

    Satterthwaite's (sum v)^2 / sum(v^2 / f) (Biometrics Bulletin 2, 1946) takes squares of estimates for squares of
    variances, which are too large by a factor of (f + 2) / f; with one degree of freedom each, as for two machines a
    side, the interval then covers too much. Without that bias it is (sum v)^2 / sum(v^2 / (f + 2)) - 2, Welch's formula
    of 1947 (that of Stata's `ttest, welch`). It is taken where all parts know equally much; elsewhere the part that
    knows least may vary most, and the smaller number of Satterthwaite is the safe one.
    """
    degrees = [part.degrees_of_freedom for part in parts]
    if variance == 0:
        return min(degrees)
    bias = 2 if len(set(degrees)) == 1 else 0
    found = variance**2 / sum(part.variance**2 / (part.degrees_of_freedom + bias) for part in parts) - bias
    return float(min(max(found, min(degrees)), sum(degrees)))


def _quantile(degrees: float, confidence: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + confidence) / 2))


def _p_value(difference: float, variance: float, degrees: float) -> float:
    from scipy.special import stdtr

    if variance == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stdtr(degrees, -abs(difference) / math.sqrt(variance)))


def between_machines(name: str, runs: Sequence[Run]) -> str:
    """Return what is to be said of the machines of a side; empty for one machine, and where they hardly differ.

    A machine counts by the median of its runs. With a single run a machine nothing is known of its noise.
    """
    by_machine: dict[str, list[float]] = {}
    for run in runs:
        by_machine.setdefault(run.machine, []).append(run.log_throughput)
    middles = [descriptive.median(logs) for logs in by_machine.values()]
    spreads = [descriptive.stdev(logs) for logs in by_machine.values() if len(logs) > 1]
    widest = max(middles) - min(middles)
    if not spreads or widest <= NOISE * max(spreads):
        return ""
    return (
        f"{name}: its {len(by_machine)} machines differ by {math.expm1(widest):.1%} and the runs of one by "
        f"{max(spreads):.2%} at most, so a claim about the product needs several machines on both sides"
    )


NOISE = 3.0
"""Machines that are further apart than this many standard deviations of a run are different ones."""
