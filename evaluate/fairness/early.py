"""Certificate items on the early window of a pair: the first steps, before any run's loss leaps.

Equal work has equal losses and gradient norms up to rounding, and the rounding grows with each step, because an update
of the weights carries it on. After a leap it is as large as the loss itself: two runs of one model then end at different
losses, and only the window before it can show whether they did the same work.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from evaluate.fairness.items import BLOCKING, SAME, UNKNOWN, Item, Sides, Values, values
from utils.results.schema import Result

LEAP = 1.1
"""A loss above this multiple of the median of all losses before it has leapt. On an H200 rises up to 6.1 % were of
trainings that still agreed, and the smallest overshoot was one of 19.5 %; batches of a training differ by less."""
MOST_STEPS, FEWEST_STEPS = 4, 3
"""Steps of the window. The difference of two implementations grows up to five times with each step, so that a fifth
step would need a band in which faults hide; fewer than three do not show that a factor is constant."""
RATES_APART = 0.05
"""Share of the largest learning rate by which the rates of a step may differ; a schedule that is late by one step
differs by 1 / (W + 1)."""
FACTOR, CONSTANT = 1.2, 1.1
"""Least factor between two sides' gradient norms that is called one (that of two ranks is 1.41), and the largest
quotient of two such factors that are one constant."""


class Band(NamedTuple):
    """Largest relative differences of equal work in the early window."""

    loss: float
    first_norm: float
    """Of the first gradient norm, for which both sides have the same weights."""
    norm: float


BANDS = {"fp32": Band(1e-3, 2e-3, 3e-3), "bf16": Band(4e-3, 5e-3, 3e-2), "fp8": Band(1.2e-2, 2e-2, 0.15)}
"""By precision. docs/fair.md has what was measured on either side of each."""
OTHER_WEIGHTS = Band(2e-2, 0.4, 0.4)
"""Of weights that different generators draw from one distribution."""
EARLY_LOSSES, NORMS = "early losses", "gradient norms"
Samples = Sequence[tuple[int, float, float]]
"""Step, and the mean of each side in it; for several seeds one entry each."""


def first_leap(result: Result) -> int | None:
    """Return the first step of a run whose loss leaps; None if no known loss does."""
    earlier: list[float] = []
    for step, loss in zip(result["steps"], result["loss_values"], strict=True):
        if loss is None:
            continue
        if earlier and loss > LEAP * earlier[len(earlier) // 2]:
            return int(step)
        insort(earlier, loss)
    return None


def has_equal_weights(sides: Sides) -> bool:
    """Return whether all runs start from the same weights (`INIT=equal`)."""
    inits = values(sides, "resolved_config", "init")
    return {*inits[0], *inits[1]} == {"equal"}


def items(sides: Sides) -> Iterator[Item]:
    """Yield the items on losses and gradient norms of the early window.

    A difference beyond the band blocks. Without one the item is the same if the window has enough steps, else unknown.
    """
    steps, band = _window(sides), _band(sides)
    for name, key, limits in (
        (EARLY_LOSSES, "loss_values", (band.loss, band.loss)),
        (NORMS, "grad_norms", (band.first_norm, band.norm)),
    ):
        samples = _samples(sides, key, steps)
        yield _item(name, samples, len(steps), limits)


def matched(of_runs: Values, seeds: Values) -> list[tuple[float, float]]:
    """Return the mean value of both sides for each seed, from the seed of each run: another seed draws other weights
    and data, and so has another loss. A single pair of means over all runs, if a seed is unknown or the two sides do
    not have the same seeds."""
    wanted = list(dict.fromkeys(seeds[0]))
    if None in (*seeds[0], *seeds[1]) or set(wanted) != set(seeds[1]):
        return [(statistics.fmean(of_runs[0]), statistics.fmean(of_runs[1]))]
    a, b = (
        [statistics.fmean(value for value, seed in zip(*side, strict=True) if seed == one) for one in wanted]
        for side in zip(of_runs, seeds, strict=True)
    )
    return list(zip(a, b, strict=True))


def apart(means: Sequence[float]) -> float:
    """Return the difference of two positive means, relative to the smaller one."""
    return abs(means[1] - means[0]) / min(means)


def _window(sides: Sides) -> list[int]:
    """Return the steps from the first one on that every run has, up to the first leap of any run or the first update
    with another learning rate."""
    runs = [run for side in sides for run in side]
    leaps = [first_leap(run) for run in runs]
    steps: list[int] = []
    for step in range(1, MOST_STEPS + 1):
        if step in leaps or any(step not in run["steps"] for run in runs):
            break
        steps.append(step)
        if not _learn_alike(runs, step):
            break
    return steps


def _learn_alike(runs: Sequence[Result], step: int) -> bool:
    """Return whether the known learning rates of a step are those of one schedule."""
    rates = [run["learning_rates"][run["steps"].index(step)] for run in runs]
    known = [rate for rate in rates if rate is not None]
    largest = max(run["training_config"]["lr"] or 0.0 for run in runs)
    return not known or max(known) - min(known) <= RATES_APART * largest


def _band(sides: Sides) -> Band:
    """Return the band of the pair: the widest one of its precisions."""
    if not has_equal_weights(sides):
        return OTHER_WEIGHTS
    precisions = values(sides, "resolved_config", "precision")
    return max(BANDS.get(precision, BANDS["bf16"]) for precision in (*precisions[0], *precisions[1]))


def _samples(sides: Sides, key: str, steps: Sequence[int]) -> Samples | None:
    """Return the samples of both sides in some steps; None if one is unknown, or no loss or norm of a training."""
    seeds, found = values(sides, "resolved_config", "seed"), []
    for step in steps:
        of_runs = [[run[key][run["steps"].index(step)] for run in side] for side in sides]
        if any(value is None or value <= 0 for side in of_runs for value in side):
            return None
        found += [(step, a, b) for a, b in matched(of_runs, seeds)]
    return found


def _item(name: str, samples: Samples | None, steps: int, limits: tuple[float, float]) -> Item:
    """Return the item on the samples of so many steps, with the limits of the first and of a later step."""
    if samples is None:
        return Item(name, UNKNOWN, f"{steps} steps", f"{steps} steps", "a side lacks values of its first steps")
    if not samples:
        return Item(name, UNKNOWN, "no step", "no step", "no step is early on both sides")
    shares = [apart((a, b)) / limits[step > 1] for step, a, b in samples]
    worst = max(range(len(samples)), key=shares.__getitem__)
    step, a, b = samples[worst]
    shown = f"{a:.5g}", f"{b:.5g}"
    if shares[worst] > 1:
        note = f"{name} differ by more than {limits[step > 1]:.1%} at step {step}"
        return Item(name, BLOCKING, *shown, _factor(samples) if name == NORMS and _factor(samples) else note)
    if steps < FEWEST_STEPS:
        note = f"fewer than {FEWEST_STEPS} steps come before a leap of the loss or another learning rate"
        return Item(name, UNKNOWN, *shown, note)
    return Item(name, SAME, *shown, f"largest difference of {steps} steps, at step {step}")


def _factor(samples: Samples) -> str:
    """Return the note on gradient norms that differ by one factor in all steps; empty if they do not.

    Gradients that were not divided by the number of ranks or micro batches, or not reduced over the ranks, show so.
    AdamW hides it from the losses, because its step does not depend on the scale of a gradient.
    """
    factors = [b / a for _, a, b in samples]
    middle = math.exp(abs(statistics.fmean(map(math.log, factors))))
    is_one = middle >= FACTOR and max(factors) <= CONSTANT * min(factors)
    return f"gradients differ by a factor of {middle:.3g}" if is_one else ""
