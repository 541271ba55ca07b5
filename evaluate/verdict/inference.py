"""Statistical inference: the ratio of two throughputs, an interval that is valid with few runs, and the verdict.

The unit is the run (one process restart), or the machine if both sides have several. The steps of one run depend on
one another and are never counted as independent. All computations use the logarithm of throughput, so that the ratio
of a to b is the inverse of that of b to a.

With few values a percentile bootstrap over runs covers the truth too seldom (0.69 for two machines a side, nominal
0.95). The interval is therefore Welch's (Biometrika 34, 1947), and a verdict requires slightly more evidence than the
interval; tests/evaluate/verdict/test_inference.py simulates both. A side with a single run has no spread between runs:
its interval comes from blocks of steps (circular block bootstrap, Politis and Romano 1992) and applies to that run
alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEVEL = 0.035
"""A verdict of faster or slower requires a smaller p-value than this. It is below 0.05, because Welch's test is an
approximation and equal sides must be called different in at most 5 % of 1,000 trials, not in 5 % on average."""
BAND = 0.03
"""Largest relative difference that does not matter in practice; to be chosen before the measurement."""
RESTARTS = 0.013
"""Two runs of one machine differ by less in 997 of 1,000 cases: three standard deviations of the difference of two
runs, at the 0.3 % between restarts that most systems of MLPerf Training v5.1 stay below. For a side with one run."""
NOISE = 3.0
"""Machines that are further apart than this many standard deviations of a run are different."""
FASTER, SLOWER, TIE = "faster", "slower", "tie"
PRODUCTS, THESE_MACHINES, THESE_RUNS = "these products", "these machines", "these two runs"
RESAMPLES = 1000


@dataclass(frozen=True)
class Run:
    """One run: its machine, the logarithm of its throughput, and its steady step times in seconds."""

    machine: str
    log_throughput: float
    step_times: tuple[float, ...] = ()
    """Needed if this is the only run of its machine."""


@dataclass(frozen=True)
class Estimate:
    """The ratio of b to a, with its interval."""

    ratio: float
    low: float
    high: float
    p_value: float
    """Two-sided p-value of no difference."""
    degrees_of_freedom: float
    scope: str
    """Population of the interval: products, these machines, or these two runs."""
    runs: tuple[int, int]
    machines: tuple[int, int]

    @property
    def is_one_run(self) -> bool:
        """True if a side has a single run, so that the spread between runs is unknown."""
        return 1 in self.runs


@dataclass(frozen=True)
class Verdict:
    """The word, and the reason why the evidence allows no more."""

    word: str
    reason: str


@dataclass(frozen=True)
class _Part:
    """A share of the variance of a mean, with its degrees of freedom."""

    variance: float
    degrees_of_freedom: float


def estimate(a: Sequence[Run], b: Sequence[Run], confidence: float = CONFIDENCE) -> Estimate:
    """Return the throughput of `b` over that of `a`; raise ValueError for a side without runs.

    With two machines or more on both sides, the unit is the machine and the interval applies to such machines in
    general. Otherwise the unit is the run and the interval applies to these machines.
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


def decide(found: Estimate, adjusted_p: float, band: float = BAND) -> Verdict:
    """Return the verdict on b against a: a difference beyond the band and not by chance, or a tie.

    `adjusted_p` is `found.p_value` after `holm` over all comparisons.
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
    """Return whether the whole interval lies in the band, which rules out a difference that matters."""
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


def remark_on_machines(name: str, runs: Sequence[Run]) -> str:
    """Return a remark if the machines of a side differ by more than their runs; empty otherwise.

    A machine counts by the median of its runs. Its noise is unknown if it has a single run.
    """
    logs = [[run.log_throughput for run in machine] for machine in _by_machine(runs)]
    middles = [statistics.median(one) for one in logs]
    spreads = [statistics.stdev(one) for one in logs if len(one) > 1]
    widest = max(middles) - min(middles)
    if not spreads or widest <= NOISE * max(spreads):
        return ""
    return (
        f"{name}: its {len(logs)} machines differ by {math.expm1(widest):.1%} and the runs of one by "
        f"{max(spreads):.2%} at most, so a claim about the product needs several machines on both sides"
    )


def variance_within(step_times: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the variance of the logarithm of a run's mean step time, and its degrees of freedom.

    Circular block bootstrap in blocks of sqrt(n) steps, which keep the correlation of neighbouring steps. The degrees
    of freedom are the number of blocks less one. The generator has a fixed seed, so that a run always gives the same
    answer. Raises ValueError for fewer than 3 steps.
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

    Satterthwaite's (sum v)^2 / sum(v^2 / f) (Biometrics Bulletin 2, 1946) uses squares of estimates as squares of
    variances, which are too large by a factor of (f + 2) / f; with one degree of freedom each, as for two machines a
    side, the interval then covers too much. Without that bias the formula is (sum v)^2 / sum(v^2 / (f + 2)) - 2,
    Welch's of 1947 (that of Stata's `ttest, welch`). It is used if all parts have equal degrees of freedom. Otherwise
    the part with the fewest may vary most, and Satterthwaite's smaller number is the safe one.
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
