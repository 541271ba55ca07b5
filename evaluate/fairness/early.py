"""Certificate items on the early window of a pair: the first steps, before any run's loss leaps.

Equal work has equal losses and gradient norms up to rounding, and the rounding grows with each step, because an update
of the weights carries it on. After a leap it is as large as the loss itself: two runs of one model then end at
different losses, and only the window before it can show whether they did the same work.
"""

from __future__ import annotations

import statistics
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import Any

from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item, Sides, Values, values
from utils.results.schema import Result

LEAP = 1.1
"""A loss above this multiple of the median of all losses before it has leapt. On an H200 rises up to 6.1 % were of
trainings that still agreed, and the smallest overshoot was one of 19.5 %; batches of a training differ by less."""
MOST_STEPS = 4
"""Last step of the window. The difference of two implementations grows up to five times with each step, so that a fifth
step would need a limit behind which faults hide."""
FEWEST_STEPS = 3
"""Fewer prove nothing: they do not show that a factor is constant."""
LIMITS = {"fp32": (5e-4, 1.5e-3), "bf16": (2.5e-3, 5e-2), "fp8": (1.2e-2, 0.15)}
"""Largest relative differences of losses and of gradient norms of equal work in the window, by precision. docs/fair.md
has what was measured on either side of each."""
FACTOR = 1.35
"""Least factor between two sides' gradient norms that is named; that of two ranks is 1.41."""
CONSTANT = 1.1
"""Largest quotient of two such factors that are one constant."""
EARLY_LOSSES = "early losses"
NORMS = "early gradient norms"
TOO_SHORT = "fewer than three steps with loss and gradient norm come before the first leap of the loss"
Pairs = list[tuple[float, float]]
"""A value of both sides for each step and seed."""


def first_leap(result: Result) -> int | None:
    """Return the place of the first loss of a run that leaps; None if none does. All its losses are known."""
    earlier: list[float] = []
    for place, loss in enumerate(result["loss_values"]):
        if earlier and loss > LEAP * earlier[len(earlier) // 2]:
            return place
        insort(earlier, loss)
    return None


def has_equal_start(sides: Sides) -> bool:
    """Return whether the first steps of all runs are equal but for rounding: they start from the same weights
    (`INIT=equal`), and no router draws at random (`ROUTING=balanced`)."""
    inits, routing = (values(sides, "resolved_config", key) for key in ("init", "routing"))
    return {*inits[0], *inits[1]} == {"equal"} and "balanced" not in routing[0] + routing[1]


def items(sides: Sides) -> Iterator[Item]:
    """Yield the items on losses and gradient norms of the early window.

    A difference beyond the limit blocks. Without one the item is the same if the window has enough steps, else unknown.
    Without an equal start they may differ by more; a constant factor between the norms always blocks.
    """
    windows = [[_early_steps(run) for run in side] for side in sides]
    common = set.intersection(*(set(window) for side in windows for window in side))
    seeds = values(sides, "resolved_config", "seed")
    precisions = values(sides, "resolved_config", "precision")
    limits = max(LIMITS.get(name, LIMITS["bf16"]) for side in precisions for name in side)
    if_different = BLOCKING if has_equal_start(sides) else ALLOWED
    for place, name in enumerate((EARLY_LOSSES, NORMS)):
        pairs: Pairs = []
        for step in sorted(common):
            pairs += matched([[window[step][place] for window in side] for side in windows], seeds)
        yield _item(name, pairs, len(common), limits[place], if_different)


def matched(of_runs: Values, seeds: Values) -> Pairs:
    """Return the mean value of both sides for each seed, from the seed of each run: another seed draws other weights
    and data, and so has another loss. A single pair of means over all runs, if a seed is unknown or the two sides do
    not have the same seeds."""
    by_seed: list[dict[Any, list[float]]] = [{}, {}]
    for place, found in enumerate(by_seed):
        for value, seed in zip(of_runs[place], seeds[place], strict=True):
            found.setdefault(seed, []).append(value)
    a, b = by_seed
    if None in a or None in b or a.keys() != b.keys():
        return [(statistics.fmean(of_runs[0]), statistics.fmean(of_runs[1]))]
    return [(statistics.fmean(a[seed]), statistics.fmean(b[seed])) for seed in a]


def apart(means: Sequence[float]) -> float:
    """Return the difference of two positive means, relative to the smaller one."""
    return abs(means[1] - means[0]) / min(means)


def _early_steps(run: Result) -> dict[int, tuple[float, float]]:
    """Return loss and gradient norm of the first steps of a run by number, up to a leap.

    A step without both is left out: Megatron's log has a mean of two steps in place of the second one.
    """
    leap, early = first_leap(run), {}
    samples = zip(run["steps"], run["loss_values"], run["grad_norms"], strict=True)
    for place, (step, loss, norm) in enumerate(samples):
        if step > MOST_STEPS or place == leap:
            break
        if norm is not None and norm > 0:
            early[step] = (loss, norm)
    return early


def _item(name: str, pairs: Pairs, steps: int, limit: float, if_different: str) -> Item:
    if not pairs:
        return Item(name, UNKNOWN, NOT_KNOWN, NOT_KNOWN, TOO_SHORT)
    a, b = max(pairs, key=apart)
    shown = f"{a:.5g}", f"{b:.5g}"
    if name == NORMS and (factor := _factor(pairs)) >= FACTOR:
        return Item(name, BLOCKING, *shown, f"gradients differ by a factor of {factor:.3g}")
    state, note = SAME, ""
    if apart((a, b)) > limit:
        state, note = if_different, f"{name} differ by more than {limit:.2%}"
    if steps < FEWEST_STEPS and state != BLOCKING:
        state, note = UNKNOWN, TOO_SHORT
    return Item(name, state, *shown, note)


def _factor(pairs: Pairs) -> float:
    """Return the factor by which all gradient norms of a window differ; 1 if it is not shown to be constant.

    Gradients that were not divided by the number of ranks or micro batches, or not reduced over the ranks, have one.
    AdamW hides it from the losses, because its step does not depend on the scale of a gradient.
    """
    factors = [b / a for a, b in pairs]
    if len(factors) < FEWEST_STEPS or max(factors) > CONSTANT * min(factors):
        return 1.0
    middle = statistics.geometric_mean(factors)
    return max(middle, 1 / middle)
