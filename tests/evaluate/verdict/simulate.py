"""How often the interval of a verdict covers the truth, and how often equal sides are called different.

Usage: PYTHONPATH=. python tests/evaluate/verdict/simulate.py [--trials 10000] [--seed 15]
Prints a table with a row for each layout, of which docs/compare.md shows some, in about three minutes on one core.

A cell is a layout (runs on each machine of both sides), a process that makes the runs, a noise between runs, and the
relation of the two sides' spreads. The truth is known in each: the ratio is 1, or 1.03, 1.05, 1.10 for the power.
Processes are scaled to the noise of the cell, and centred so that both sides have the same true mean.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evaluate.metrics import intervals
from evaluate.verdict import inference

Array = npt.NDArray[np.float64]
Side = tuple[int, ...]
"""Runs on each machine of a side; AUTO stands for RUNS=auto on one machine."""
Summary = tuple[Array, Array, Array, Array]
"""Mean of a side, its variance, degrees of freedom, and number of runs, each [trials]."""
AUTO: Side = (0,)
AUTO_LEAST, AUTO_MOST, AUTO_TARGET = 3, 10, 0.01
"""RUNS=auto (utils/results/performance.py): at least 3 runs, then more until the 95 % interval of the mean of the
logarithm of throughput, exp(t s / sqrt(n)) - 1, is within 1 %; at most 10."""
NOISES = (0.002, 0.01, 0.03)
"""Standard deviation of a run: MLPerf Training v5.1 has 0.02 to 1.3 %, a shared virtual machine about 3 %."""
AUTO_NOISES = (0.002, 0.005, 0.01, 0.015, 0.03)
SPREADS = ((1.0, 1.0), (1.0, 1 / 3), (1 / 3, 1.0))
"""Noise of the runs of a and of b, times that of the cell."""
MACHINES = ((0.008, 0.008), (0.023, 0.023), (0.008, 0.023), (0.023, 0.008))
"""Spread between machines of one product in MLPerf Training v5.1: B200 0.8 %, MI355X 2.3 %."""
DIFFERENCES = (0.03, 0.05, 0.10)
STEPS = 100
POOL = 100_000
"""Runs of a process that the trials draw from."""


def independent(random: np.random.Generator, count: int) -> Array:
    return random.normal(size=count)


def correlated_steps(random: np.random.Generator, count: int) -> Array:
    """Steps follow one another with a correlation of 0.9 (AR(1)) and make half of the variance of a run."""
    step, total = random.normal(size=count), np.zeros(count)
    for _ in range(STEPS):
        step = 0.9 * step + math.sqrt(1 - 0.9**2) * random.normal(size=count)
        total += step
    return random.normal(size=count) + _unit(total)


def drifting_steps(random: np.random.Generator, count: int) -> Array:
    """Each run becomes slower by its own amount, as on a chip that heats up: its mean is half of that amount lower."""
    return random.normal(size=count) - _unit(np.abs(random.normal(size=count)))


def two_levels(random: np.random.Generator, count: int) -> Array:
    """Steps stay at one of two levels for 50 steps on average, so that a run's mean is anything between."""
    level, total = random.random(count) < 0.5, np.zeros(count)
    for _ in range(STEPS):
        level ^= random.random(count) < 0.02
        total += level
    return 0.3 * random.normal(size=count) + _unit(total)


def _unit(values: Array) -> Array:
    return values / float(values.std())


ODD = "odd runs"
ODD_SHARE, ODD_DIFFERENCE = 0.1, 0.05
"""With this process, one run of ten is 5 % slower on both sides, as with other work on the machine."""
PROCESSES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "independent": independent,
    "AR(1) steps": correlated_steps,
    "drift": drifting_steps,
    "two levels": two_levels,
    ODD: independent,
}
ONE_MACHINE: tuple[tuple[Side, Side], ...] = (
    *(((n,), (n,)) for n in (2, 3, 4, 5, 6, 7, 8, 9, 10)),
    *(((few,), (many,)) for few, many in ((2, 3), (2, 5), (2, 10), (2, 20), (3, 4), (3, 5), (3, 10), (5, 10), (5, 20))),
    (AUTO, AUTO),
    ((5,), AUTO),
)
OTHER_MACHINES: tuple[tuple[Side, Side], ...] = (((5,), (1, 1)), ((5,), (1, 1, 1)), ((5,), (5, 5)), ((5,), (3, 2, 1)))
SEVERAL: tuple[tuple[Side, Side], ...] = (
    *(((1,) * n, (1,) * n) for n in (2, 3, 4, 5)),
    *(((3,) * n, (3,) * n) for n in (2, 3, 4, 5)),
    ((5,) * 2, (5,) * 5),
    ((3,) * 3, (3,) * 5),
    ((5, 3, 1), (2, 2, 2)),
)
LAYOUTS = (*ONE_MACHINE, *OTHER_MACHINES, *SEVERAL)


@dataclass(frozen=True)
class Cell:
    """One setting of the simulation."""

    a: Side
    b: Side
    process: str
    noise: float
    spreads: tuple[float, float] = (1.0, 1.0)
    machines: tuple[float, float] = (0.0, 0.0)

    @property
    def is_general(self) -> bool:
        return min(len(self.a), len(self.b)) > 1


@dataclass(frozen=True)
class Outcome:
    """Shares of the trials of a cell, from 0 to 1."""

    cell: Cell
    coverage: float
    false: float
    """Equal sides called different, with a band of 0."""
    false_beyond_band: float
    found: tuple[float, ...]
    """True DIFFERENCES called faster, with the default band."""
    half_width: float
    """Median half width of the interval, relative."""


def cells(layouts: Sequence[tuple[Side, Side]] = LAYOUTS) -> Iterator[Cell]:
    """Yield all cells of these layouts (default: all), each layout with every process, noise and spread."""
    for a, b in layouts:
        machines = MACHINES if len(a) > 1 else ((0.0, 0.0), (0.0, 0.023)) if len(b) > 1 else ((0.0, 0.0),)
        noises = AUTO_NOISES if AUTO in (a, b) else NOISES
        for process, noise, (spreads, effects) in itertools.product(
            PROCESSES, noises, itertools.product(SPREADS, machines)
        ):
            yield Cell(a, b, process, noise, spreads, effects)


def pools(seed: int, count: int = POOL) -> dict[str, Array]:
    """Return runs of each process, centred, with a deviation of 1."""
    found = {}
    for place, (process, make) in enumerate(PROCESSES.items()):
        values = make(np.random.default_rng([seed, place]), count)
        found[process] = _unit(values - values.mean())
    return found


def simulate(cell: Cell, pool: Array, trials: int, seed: int = 0) -> Outcome:
    """Return the outcome of a cell; a seed and a cell always give the same."""
    random = np.random.default_rng([seed, *repr(cell).encode()])
    means, variances, degrees, runs = zip(*(_side(cell, place, random, pool, trials) for place in (0, 1)), strict=True)
    apart, deviation = means[1] - means[0], np.sqrt(variances[0] + variances[1])
    selection = inference.AUTO_SELECTION if AUTO in (cell.a, cell.b) else 1.0
    half, least = (
        intervals.critical_value(level / selection, variances, degrees) * deviation
        for level in (inference.INTERVAL_LEVEL, inference.LEVEL)
    )
    is_enough = np.minimum(*runs) >= inference.LEAST_RUNS

    def differs(true: float, band: float) -> npt.NDArray[np.bool_]:
        size = np.abs(apart + math.log1p(true))
        return (size > least) & (size > math.log1p(band)) & is_enough

    return Outcome(
        cell,
        float(np.mean(np.abs(apart) <= half)),
        float(np.mean(differs(0.0, 0.0))),
        float(np.mean(differs(0.0, inference.BAND))),
        tuple(float(np.mean(differs(true, inference.BAND) & (apart + math.log1p(true) > 0))) for true in DIFFERENCES),
        float(np.median(np.expm1(half))),
    )


def _side(cell: Cell, place: int, random: np.random.Generator, pool: Array, trials: int) -> Summary:
    """Return the summary of one side of a cell in every trial: 0 for a, 1 for b."""
    side, noise = (cell.a, cell.b)[place], cell.noise * cell.spreads[place]

    def runs(count: int) -> Array:
        found = random.choice(pool, (trials, count)) * noise
        if cell.process == ODD:
            found -= math.log1p(ODD_DIFFERENCE) * (random.random((trials, count)) < ODD_SHARE)
        return found

    if side == AUTO:
        return auto(runs(AUTO_MOST))
    effects = random.normal(0, cell.machines[place], (trials, len(side)))
    if not cell.is_general:  # about these machines: the truth is their own mean
        effects -= effects.mean(axis=1, keepdims=True)
    machines = [runs(count) + effects[:, [machine]] for machine, count in enumerate(side)]
    return summary(machines, is_general=cell.is_general)


def summary(machines: Sequence[Array], *, is_general: bool) -> Summary:
    """Return the mean of a side, its variance, the degrees of freedom and the number of runs, each [trials].

    `machines` holds the runs of each machine [trials, runs]. The formulas are those of evaluate/verdict/inference.py.
    """
    counts = np.array([one.shape[1] for one in machines])
    middles = np.stack([one.mean(axis=1) for one in machines], axis=1)
    trials, size = middles.shape
    if not is_general and counts.min() > 1:
        parts = np.stack([one.var(axis=1, ddof=1) / one.shape[1] for one in machines], axis=1) / size**2
        variance = parts.sum(axis=1)
        weights = (parts**2 / (counts - 1)).sum(axis=1)
        degrees = np.where(weights > 0, variance**2 / np.maximum(weights, 1e-300), counts.sum() - size)
    else:
        variance = middles.var(axis=1, ddof=1) / size
        degrees = np.full(trials, size - 1.0)
    return middles.mean(axis=1), variance, degrees, np.full(trials, float(counts.sum()))


def auto(runs: Array) -> Summary:
    """Return the summary of runs [trials, AUTO_MOST] that stop as RUNS=auto does."""
    from scipy.special import stdtrit

    trials = len(runs)
    mean, variance, count = np.zeros(trials), np.zeros(trials), np.zeros(trials)
    for n in range(AUTO_LEAST, AUTO_MOST + 1):
        square = runs[:, :n].var(axis=1, ddof=1) / n
        stops = (count == 0) & ((np.expm1(stdtrit(n - 1, 0.975) * np.sqrt(square)) <= AUTO_TARGET) | (n == AUTO_MOST))
        mean[stops], variance[stops], count[stops] = runs[stops, :n].mean(axis=1), square[stops], n
    return mean, variance, count - 1, count


def added(cell: Cell, pool: Array, trials: int, seed: int, most: int = AUTO_MOST) -> tuple[float, float]:
    """Return how often equal sides are called different, with a band of 0, and how often the last interval covers the
    truth, where each side gets one more run until a difference is found, `most` at the most.

    Runs that were added count with ADDED_SELECTION, as `repeats` of their results says that RUNS was another.
    """
    random = np.random.default_rng([seed, *repr(cell).encode(), most])
    runs = [random.choice(pool, (trials, most)) * cell.noise * spread for spread in cell.spreads]
    is_different, covers = np.zeros(trials, bool), np.zeros(trials, bool)
    for count in range(cell.a[0], most + 1):
        means, variances, degrees, _ = zip(*(summary([one[:, :count]], is_general=False) for one in runs), strict=True)
        apart, deviation = np.abs(means[1] - means[0]), np.sqrt(variances[0] + variances[1])
        selection = inference.ADDED_SELECTION if count > cell.a[0] else 1.0
        half, least = (
            intervals.critical_value(level / selection, variances, degrees) * deviation
            for level in (inference.INTERVAL_LEVEL, inference.LEVEL)
        )
        covers = np.where(is_different, covers, apart <= half)
        is_different |= apart > least
    return float(np.mean(is_different)), float(np.mean(covers))


def title(*layout: Side) -> str:
    """Return a layout as text: `1 x 5` is one machine with five runs."""
    each = (f"{len(side)} x {', '.join(map(str, dict.fromkeys(side)))}" for side in layout)
    return " against ".join(each).replace("x 0", "x auto")


def is_conservative(cell: Cell) -> bool:
    """Return whether a cell may cover the truth in more than 98 %.

    Two values on a side; RUNS=auto, whose level holds where the noise is just what the rule looks for; a spread between
    machines where the claim is about these machines; odd runs, whose spread is wide wherever they are.
    """
    units = [len(side) if cell.is_general else sum(side) for side in (cell.a, cell.b)]
    is_mixed = not cell.is_general and max(len(cell.a), len(cell.b)) > 1
    return min(units) <= 2 or is_mixed or cell.process == ODD


HEADER = (
    "| machines x runs | interval covers the truth | equal sides called different, band 0 | band 3 % | 3, 5, 10 % "
    "found at noise 0.2 % | at 1 % | at 3 % | half width at 1 % |"
)


def row(outcomes: Sequence[Outcome]) -> str:
    """Return the row of a layout: extremes over its cells, and the power with equal spreads and independent runs."""
    covers, false, beyond = zip(*((one.coverage, one.false, one.false_beyond_band) for one in outcomes), strict=True)
    same = [one for one in outcomes if one.cell.process == "independent" and one.cell.spreads == (1.0, 1.0)]
    plain = {one.cell.noise: one for one in reversed(same)}
    powers = " | ".join(", ".join(f"{100 * share:.0f}" for share in plain[noise].found) + " %" for noise in NOISES)
    return (
        f"| {title(outcomes[0].cell.a, outcomes[0].cell.b)} | {100 * min(covers):.1f} to {100 * max(covers):.1f} % "
        f"| {100 * max(false):.1f} % | {100 * max(beyond):.1f} % | {powers} | {100 * plain[0.01].half_width:.1f} % |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=10_000, help="trials of each cell (default 10000)")
    parser.add_argument("--seed", type=int, default=15)
    trials, seed = vars(parser.parse_args()).values()
    pool = pools(seed)
    print(HEADER, "|---" * (HEADER.count("|") - 1) + "|", sep="\n")
    for layout in LAYOUTS:
        print(row([simulate(cell, pool[cell.process], trials, seed) for cell in cells([layout])]), flush=True)
    more = [Cell((3,), (3,), process, 0.01, spreads) for process in PROCESSES for spreads in SPREADS]
    different, covers = zip(*(added(cell, pool[cell.process], trials, seed) for cell in more), strict=True)
    print(f"\nRuns added until a difference is found: called different in {max(different):.1%} at most,")
    print(f"covers {min(covers):.1%} or more.")


if __name__ == "__main__":
    main()
