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

from evaluate.fairness.items import (
    ALLOWED,
    BLOCKING,
    NOT_KNOWN,
    SAME,
    UNKNOWN,
    Item,
    Sides,
    Values,
    both,
    of_runs,
    values,
)
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
    """Return whether the first steps of all runs can differ by rounding only.

    This needs the same initial weights (`INIT=equal`) and no router that draws at random (`ROUTING=balanced`).
    """
    inits = both(values(sides, "resolved_config", "init"))
    return set(inits) == {"equal"} and "balanced" not in both(values(sides, "resolved_config", "routing"))


def items(sides: Sides) -> Iterator[Item]:
    """Yield the items on losses and gradient norms of the early window.

    A difference beyond the limit blocks. Without one the item is the same if the window has enough steps, else unknown.
    Without an equal start they may differ by more; a constant factor between the norms always blocks.
    """
    windows = of_runs(sides, _early_steps)
    common = set.intersection(*(set(window) for window in both(windows)))
    seeds = values(sides, "resolved_config", "seed")
    precisions = both(values(sides, "resolved_config", "precision"))
    # a precision that nobody measured gets the limits of bf16
    limits = max(LIMITS.get(name, LIMITS["bf16"]) for name in precisions)
    if_different = BLOCKING if has_equal_start(sides) else ALLOWED
    for place, name in enumerate((EARLY_LOSSES, NORMS)):
        pairs: Pairs = []
        for step in sorted(common):
            of_step = [[window[step][place] for window in side] for side in windows]
            pairs += matched(of_step, seeds)
        yield _item(name, pairs, len(common), limits[place], if_different)


def matched(found: Values, seeds: Values) -> Pairs:
    """Return a pair for each seed: the mean value of the runs of a with this seed, and that of the runs of b.

    Another seed draws other weights and data, and so has another loss. If a seed is unknown, or if the two sides do not
    have the same seeds, the result is one pair of the means over all runs.
    """
    a, b = (_by_seed(side, of_side) for side, of_side in zip(found, seeds, strict=True))
    if None in a or None in b or a.keys() != b.keys():
        return [(statistics.fmean(found[0]), statistics.fmean(found[1]))]
    return [(statistics.fmean(a[seed]), statistics.fmean(b[seed])) for seed in a]


def _by_seed(side: Sequence[float], seeds: Sequence[Any]) -> dict[Any, list[float]]:
    by_seed: dict[Any, list[float]] = {}
    for value, seed in zip(side, seeds, strict=True):
        by_seed.setdefault(seed, []).append(value)
    return by_seed


def apart(means: Sequence[float]) -> float:
    """Return the difference of two positive means, relative to the smaller one."""
    return abs(means[1] - means[0]) / min(means)


def _early_steps(run: Result) -> dict[int, tuple[float, float]]:
    """Return loss and gradient norm of the first steps of a run by number, up to a leap.

    A step without both is left out: Megatron's log has a mean of two steps in place of the second one.
    """
    leap = first_leap(run)
    window: dict[int, tuple[float, float]] = {}
    samples = zip(run["steps"], run["loss_values"], run["grad_norms"], strict=True)
    for place, (step, loss, norm) in enumerate(samples):
        # rounding grows with each step, so a late window shows nothing
        if step > MOST_STEPS or place == leap:
            break
        if norm is not None and norm > 0:
            window[step] = (loss, norm)
    return window


def _item(name: str, pairs: Pairs, steps: int, limit: float, if_different: str) -> Item:
    if not pairs:
        return Item(name, UNKNOWN, NOT_KNOWN, NOT_KNOWN, TOO_SHORT)
    a, b = max(pairs, key=apart)
    state, note = SAME, ""
    if apart((a, b)) > limit:
        state, note = if_different, f"{name} differ by more than {limit:.2%}"
    if steps < FEWEST_STEPS and state != BLOCKING:
        state, note = UNKNOWN, TOO_SHORT
    factor = _factor(pairs)
    if name == NORMS and factor >= FACTOR:
        # equal work has no such factor, whatever the start and the length of the window
        state, note = BLOCKING, f"gradients differ by a factor of {factor:.3g}"
    return Item(name, state, f"{a:.5g}", f"{b:.5g}", note)


def _factor(pairs: Pairs) -> float:
    """Return the factor by which all gradient norms of a window differ; 1 if it is not shown to be constant.

    Gradients that were not divided by the number of ranks or micro batches, or not reduced over the ranks, have one.
    AdamW hides it from the losses, because its step does not depend on the scale of a gradient.
    """
    factors = [b / a for a, b in pairs]
    # other weights have other norms, but their quotient changes from step to step
    if len(factors) < FEWEST_STEPS or max(factors) > CONSTANT * min(factors):
        return 1.0
    middle = statistics.geometric_mean(factors)
    return max(middle, 1 / middle)
