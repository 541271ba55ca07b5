"""Certificate items on the losses of both sides: their first and their last values, and their course between.

Whatever lies after a leap of the loss proves nothing against a pair: it is shown, and does not forbid a comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from evaluate.checks.recorded import longest_equal
from evaluate.fairness import early
from evaluate.fairness.early import apart, first_leap, has_equal_weights, matched
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item, Sides, fits, values
from evaluate.metrics.intervals import half_interval
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss
from evaluate.metrics.steady import Floats
from utils.results.schema import Result

FIRST_LOSS_EQUAL_INIT = 1e-3
FIRST_LOSS_NATIVE_INIT = 0.02
"""Relative. The losses of weights that different generators draw from one distribution differ by far less than this."""
LAST_LOSS = 0.02
"""Relative to the loss: the band of the mean over the last tenth of the steps."""
LEVEL, ENOUGH_FOR_INTERVAL = 0.10, 3
"""Two one-sided tests at 5 % are an interval of 90 %; from three runs a side, or seeds, on."""
ENOUGH_STEPS = 20
EQUAL_SHARE = 0.5
"""Share of the steps. Two vendors add in another order, so their losses part within a few steps."""
FEW_DIGITS = 5
"""A loss that was printed with so few digits may be equal by rounding."""
VENDORS = {"amd", "nvd"}
ABOVE = 1.02
LONGEST_SHARE = 0.05
"""A loss that stays above the first one for longer has diverged, also if it comes back."""
TENTHS, APART = 10, 0.05
"""Parts of a run in which the mean losses of both sides are compared, and their largest relative difference."""
STABILITY = "stability of the training"
UNSTABLE = "the training is unstable: a smaller LR or a longer WARMUP_ITERS makes its last losses evidence"
Pairs = Sequence[tuple[float, float]]
"""The mean loss of both sides for each seed."""


def losses(sides: Sides) -> Iterator[Item]:
    """Yield the items on the loss curves; a single unknown item if a loss is missing.

    Equal weights and an equal first batch give an equal first loss, and an equal early window (early.py). Later the
    curves may drift apart through rounding and different kernels, so the end is tested for equivalence: the difference
    has to lie in a band that is a share of the loss, and so shrinks with it. From three runs a side on, the whole 90 %
    interval of the difference has to lie in the band (two one-sided tests at 5 %: Schuirmann, Journal of
    Pharmacokinetics and Biopharmaceutics 15, 1987). Runs of several seeds are compared seed by seed, and the interval
    is that of the paired differences.
    """
    yield from _copied(sides)
    has_all = [all(one["loss_values"] and None not in one["loss_values"] for one in side) for side in sides]
    if not all(has_all):
        shown = ["known" if known else "unknown" for known in has_all]
        yield Item("losses", UNKNOWN, shown[0], shown[1], "a loss is missing")
        return
    of_window = list(early.items(sides))
    yield from (_first(sides), *of_window, _unseen(sides), *_tenths(sides))
    late = [_last(sides), _convergence(sides), _course(sides)]
    is_proven = has_equal_weights(sides) and all(item.state == SAME for item in of_window)
    stability = _stability(sides, is_proven, all(item.state == SAME for item in late))
    yield stability
    for item in late:
        is_after_a_leap = item.state == BLOCKING and stability.state != SAME
        yield replace(item, state=ALLOWED, note=f"{item.note}, after a leap") if is_after_a_leap else item


def _stability(sides: Sides, is_proven: bool, is_late_alike: bool) -> Item:
    """Return the item on leaps of the loss. Unless the early window proves the same work, a leap leaves it unproven; so
    does a leap of one side only, if the losses after it are not alike: chaos would have reached the other side."""
    leaps = [[leap for leap in map(first_leap, side) if leap] for side in sides]
    a, b = (f"the loss leaps at step {min(side)}" if side else "no leap" for side in leaps)
    if not any(leaps):
        return Item(STABILITY, SAME, a, b)
    is_evidence = is_proven and (is_late_alike or all(leaps))
    return Item(STABILITY, ALLOWED if is_evidence else UNKNOWN, a, b, UNSTABLE)


def _first(sides: Sides) -> Item:
    first = [[one["loss_values"][0] for one in side] for side in sides]
    band = FIRST_LOSS_EQUAL_INIT if has_equal_weights(sides) else FIRST_LOSS_NATIVE_INIT
    pairs = matched(first, values(sides, "resolved_config", "seed"))
    return _within(pairs, None, band, "initial loss", f"initial losses differ by more than {band:.1%}")


def _last(sides: Sides) -> Item:
    last = _last_losses(sides)
    pairs = matched(last, values(sides, "resolved_config", "seed"))
    groups = [[b - a for a, b in pairs]] if len(pairs) > 1 else last
    half = half_interval(groups, LEVEL) if min(map(len, groups)) >= ENOUGH_FOR_INTERVAL else None
    note = f"final losses are not shown to agree within {LAST_LOSS:.0%} of the loss"
    return _within(pairs, half, LAST_LOSS, "final loss", note)


def _unseen(sides: Sides) -> Item:
    a, b = map(min, _last_losses(sides))
    note = "a loss this small is of memorised data"
    return fits("unseen data", min(a, b) > MEMORISED_NATS, f"{a:.5g}", f"{b:.5g}", note)


def _convergence(sides: Sides) -> Item:
    a, b = (max(last_loss(one) - one["loss_values"][0] for one in side) for side in sides)
    return fits("convergence", max(a, b) <= 0, f"{a:+.4g}", f"{b:+.4g}", "the loss ends above where it began")


def _course(sides: Sides) -> Item:
    a, b = (max(map(_steps_above_the_first, side)) for side in sides)
    limits = [max(ENOUGH_STEPS // 2, *(LONGEST_SHARE * len(one["steps"]) for one in side)) for side in sides]
    note = "the loss stays above its first value in the middle of a run"
    return fits("course of the loss", a < limits[0] and b < limits[1], f"{a} steps", f"{b} steps", note)


def _last_losses(sides: Sides) -> list[list[float]]:
    return [[last_loss(one) for one in side] for side in sides]


def _within(pairs: Pairs, half: float | None, band: float, name: str, note: str) -> Item:
    """Return the item on losses that agree within a relative band: those of each seed if `half` is None, else their
    means with half of the interval of the difference."""
    a, b = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    left, right = max(pairs, key=apart)
    is_fine = apart((left, right)) <= band if half is None else abs(b - a) + half <= band * min(a, b)
    if len(pairs) > 1:
        note += f", {left:.5g} against {right:.5g} with the seed that differs most; means"
    return fits(name, is_fine, f"{a:.5g}", f"{b:.5g}", note)


def _copied(sides: Sides) -> Iterator[Item]:
    """Yield an item if a run of one vendor has the losses of a run of the other."""
    curves = [[(one["platform"], np.array(one["loss_values"], dtype=float)) for one in side] for side in sides]
    equal = (_equal_steps(a, b) for (one, a), (other, b) in product(*curves) if {one, other} == VENDORS)
    if count := max(equal, default=0):
        note = f"{count} losses are equal to the last digit on two vendors, which no two devices compute"
        yield Item("loss curves", BLOCKING, sides[0][0]["platform"], sides[1][0]["platform"], note)


def _equal_steps(a: Floats, b: Floats) -> int:
    """Return the number of equal losses of two runs, NaN where unknown; 0 if there are too few to mean anything."""
    steps = min(len(a), len(b))
    equal = a[:steps][a[:steps] == b[:steps]].tolist()
    exact = {one for one in equal if one != float(f"{one:.{FEW_DIGITS}g}")}
    return len(equal) if len(exact) >= ENOUGH_STEPS and len(equal) >= EQUAL_SHARE * steps else 0


def _tenths(sides: Sides) -> Iterator[Item]:
    """Yield an item on the tenth of the run whose mean losses are furthest apart, if they are too far; none if the runs
    are short. Of unstable runs these are tenths of the steps before the first leap."""
    runs = [run for side in sides for run in side]
    leaps = [run["steps"].index(leap) for run in runs if (leap := first_leap(run))]
    curves = [[one["loss_values"][: min(leaps, default=None)] for one in side] for side in sides]
    if any(len(curve) < ENOUGH_STEPS for side in curves for curve in side):
        return
    tenths = [
        [[curve[len(curve) * n // TENTHS : len(curve) * (n + 1) // TENTHS] for curve in side] for side in curves]
        for n in range(TENTHS)
    ]
    means = [[statistics.fmean(map(statistics.fmean, side)) for side in parts] for parts in tenths]
    place, (a, b) = max(enumerate(means, 1), key=lambda one: apart(one[1]))
    if apart((a, b)) > APART:
        note = f"the losses of tenth {place} of the run are more than {APART:.0%} apart"
        yield Item("losses on the way", BLOCKING, f"{a:.5g}", f"{b:.5g}", note)


def _steps_above_the_first(result: Result) -> int:
    """Return the largest number of steps in a row whose loss is above the first one."""
    first, *others = result["loss_values"]
    return longest_equal([True if loss > ABOVE * first else None for loss in others])
