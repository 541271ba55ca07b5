"""Certificate items on the course of the loss between its first and its last steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import product

from evaluate.fairness.items import BLOCKING, SAME, Item
from utils.results.schema import Result

ENOUGH_STEPS = 20
EQUAL_SHARE = 0.5
"""Share of the steps. Two vendors add in another order, so their losses part within a few steps."""
FEW_DIGITS = 5
"""A loss that was printed with so few digits may be equal by rounding."""
ABOVE = 1.02
LONGEST_SHARE = 0.05
"""A loss that stays above the first one for longer has diverged, also if it comes back."""
TENTHS, APART = 10, 0.05
"""Parts of a run in which the mean losses of both sides are compared, and their largest relative difference."""
VENDORS = {"amd", "nvd"}


def loss_course(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item on runs of two vendors with equal losses, and one on a loss that diverges for a while."""
    if {one["platform"] for side in (a, b) for one in side} >= VENDORS:
        equal = max((_equal_steps(one, other) for one, other in product(a, b)), default=0)
        if equal:
            note = f"{equal} losses are equal to the last digit on two vendors, which no two devices compute"
            yield Item("loss curves", BLOCKING, a[0]["platform"], b[0]["platform"], note)
    tenths = [_tenths(side) for side in (a, b)]
    if all(tenths):
        apart = [abs(one - other) / min(one, other) for one, other in zip(*tenths, strict=True)]
        place = max(range(TENTHS), key=apart.__getitem__)
        if apart[place] > APART:
            words = [f"{side[place]:.5g}" for side in tenths]
            note = f"the losses of tenth {place + 1} of the run are more than {APART:.0%} apart"
            yield Item("losses on the way", BLOCKING, words[0], words[1], note)
    longest = [max(_steps_above_the_first(one) for one in side) for side in (a, b)]
    limits = [max(ENOUGH_STEPS // 2, *(LONGEST_SHARE * len(one["steps"]) for one in side)) for side in (a, b)]
    diverges = any(steps >= limit for steps, limit in zip(longest, limits, strict=True))
    words = [f"{steps} steps" for steps in longest]
    note = "the loss stays above its first value in the middle of a run"
    yield Item("course of the loss", BLOCKING if diverges else SAME, words[0], words[1], note if diverges else "")


def _equal_steps(a: Result, b: Result) -> int:
    """Return the number of equal losses of two runs of two platforms; 0 if there are too few to mean anything."""
    if a["platform"] == b["platform"]:
        return 0
    pairs = list(zip(a["loss_values"], b["loss_values"], strict=False))
    equal = [one for one, other in pairs if one is not None and one == other]
    exact = {one for one in equal if one != float(f"{one:.{FEW_DIGITS}g}")}
    if len(exact) < ENOUGH_STEPS or len(equal) < EQUAL_SHARE * len(pairs):
        return 0
    return len(equal)


def _tenths(side: Sequence[Result]) -> list[float]:
    """Return the mean loss of each tenth of the runs of a side; empty if a loss is unknown or the runs are short."""
    losses = [one["loss_values"] for one in side]
    if any(len(run) < ENOUGH_STEPS or None in run for run in losses):
        return []
    parts = [[run[len(run) * n // TENTHS : len(run) * (n + 1) // TENTHS] for n in range(TENTHS)] for run in losses]
    return [statistics.fmean(map(statistics.fmean, tenth)) for tenth in zip(*parts, strict=True)]


def _steps_above_the_first(result: Result) -> int:
    """Return the largest number of steps in a row whose loss is above the first one."""
    losses = result["loss_values"]
    if not losses or losses[0] is None:
        return 0
    longest = count = 0
    for loss in losses[1:]:
        count = count + 1 if loss is not None and loss > ABOVE * losses[0] else 0
        longest = max(longest, count)
    return longest
