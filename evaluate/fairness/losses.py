"""Certificate items on the losses of both sides: their first and their last values, and their course between.

The last losses of an unstable training prove nothing against a pair: they are shown, and do not forbid a comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from evaluate.fairness import early
from evaluate.fairness.early import Pairs, apart, first_leap, has_equal_start, matched
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item, Sides, both, fits, of_runs, values
from evaluate.metrics.intervals import half_interval
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss
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
TENTHS, APART = 10, 0.05
"""Parts of a run in which the mean losses of both sides are compared, and their largest relative difference."""
STABILITY = "stability of the training"
UNSTABLE = "the training is unstable: a smaller LR or a longer WARMUP_ITERS makes its last losses evidence"


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
    shown = [_known(side) for side in sides]
    if "unknown" in shown:
        yield Item("losses", UNKNOWN, shown[0], shown[1], "a loss is missing")
        return
    of_window = list(early.items(sides))
    yield from (_first(sides), *of_window, _unseen(sides), *_tenths(sides))
    is_proven = has_equal_start(sides) and all(item.state == SAME for item in of_window)
    last = _last(sides)
    stability = _stability(sides, is_proven, last.state == SAME)
    yield stability
    # two runs of one unstable training end apart too
    if stability.state != SAME and last.state == BLOCKING:
        last = replace(last, state=ALLOWED)
    yield last


def _known(side: Sequence[Result]) -> str:
    """Return whether every loss of a side is known, in a word."""
    for run in side:
        if not run["loss_values"] or None in run["loss_values"]:
            return "unknown"
    return "known"


def _stability(sides: Sides, is_proven: bool, is_end_alike: bool) -> Item:
    """Return the item on unstable trainings.

    The last losses of an unstable training prove nothing, so the early window has to prove the same work. If one side
    alone is unstable, the two must also end alike: equal work would be unstable on both sides.
    """
    signs = [_instability(side) for side in sides]
    a, b = (sign or "stable" for sign in signs)
    if not any(signs):
        return Item(STABILITY, SAME, a, b)
    is_evidence = is_proven and (is_end_alike or all(signs))
    return Item(STABILITY, ALLOWED if is_evidence else UNKNOWN, a, b, UNSTABLE)


def _instability(side: Sequence[Result]) -> str:
    """Return the first sign of an unstable training in the losses of a side; empty if there is none."""
    for run in side:
        leap = first_leap(run)
        # a leap tells more than the end, which may have recovered
        if leap:
            return f"the loss leaps at step {run['steps'][leap]}"
        if last_loss(run) > run["loss_values"][0]:
            return "the loss ends above where it began"
    return ""


def _first(sides: Sides) -> Item:
    first = of_runs(sides, lambda run: run["loss_values"][0])
    band = FIRST_LOSS_EQUAL_INIT if has_equal_start(sides) else FIRST_LOSS_NATIVE_INIT
    pairs = matched(first, values(sides, "resolved_config", "seed"))
    return _within(pairs, None, band, "initial loss", f"initial losses differ by more than {band:.1%}")


def _last(sides: Sides) -> Item:
    last = of_runs(sides, last_loss)
    pairs = matched(last, values(sides, "resolved_config", "seed"))
    # with several seeds the differences of the pairs are the sample, else the losses of each side are
    groups = [[b - a for a, b in pairs]] if len(pairs) > 1 else last
    half = None
    if min(map(len, groups)) >= ENOUGH_FOR_INTERVAL:
        half = half_interval(groups, LEVEL)
    note = f"final losses are not shown to agree within {LAST_LOSS:.0%} of the loss"
    return _within(pairs, half, LAST_LOSS, "final loss", note)


def _unseen(sides: Sides) -> Item:
    a, b = (min(map(last_loss, side)) for side in sides)
    note = "a loss this small is of memorised data"
    return fits("unseen data", min(a, b) > MEMORISED_NATS, f"{a:.5g}", f"{b:.5g}", note)


def _within(pairs: Pairs, half: float | None, band: float, name: str, note: str) -> Item:
    """Return the item on losses that must agree within a relative band.

    Without an interval the losses of each seed must lie in it. With half of the interval of the difference (`half`),
    the whole interval must.
    """
    a, b = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    left, right = max(pairs, key=apart)
    is_fine = apart((left, right)) <= band
    if half is not None:
        is_fine = abs(b - a) + half <= band * min(a, b)
    if len(pairs) > 1:
        note += f", {left:.5g} against {right:.5g} with the seed that differs most; means"
    return fits(name, is_fine, f"{a:.5g}", f"{b:.5g}", note)


def _copied(sides: Sides) -> Iterator[Item]:
    """Yield an item if a run of one vendor has the losses of a run of the other."""
    most = 0
    for a, b in product(*sides):
        if {a["platform"], b["platform"]} == VENDORS:
            most = max(most, _equal_steps(a, b))
    if most:
        note = f"{most} losses are equal to the last digit on two vendors, which no two devices compute"
        yield Item("loss curves", BLOCKING, sides[0][0]["platform"], sides[1][0]["platform"], note)


def _equal_steps(a: Result, b: Result) -> int:
    """Return the number of equal losses of two runs, where both are known; 0 if there are too few to mean anything."""
    steps = min(len(a["loss_values"]), len(b["loss_values"]))
    equal, exact = 0, set()
    for loss, other in zip(a["loss_values"], b["loss_values"], strict=False):
        if loss is not None and loss == other:
            equal += 1
            # equal rounded losses are no copy
            if loss != float(f"{loss:.{FEW_DIGITS}g}"):
                exact.add(loss)
    return equal if len(exact) >= ENOUGH_STEPS and equal >= EQUAL_SHARE * steps else 0


def _tenths(sides: Sides) -> Iterator[Item]:
    """Yield an item if the mean losses of a tenth of the run are too far apart; the item is on the worst tenth.

    Short runs are not divided. Unstable runs are compared up to the first leap only.
    """
    leaps = [first_leap(run) for run in both(sides)]
    # the earliest leap of any run ends what can be compared
    end = min(filter(None, leaps), default=None)
    if any(len(run["steps"][:end]) < ENOUGH_STEPS for run in both(sides)):
        return
    a, b = (np.mean([_means(run["loss_values"][:end]) for run in side], axis=0) for side in sides)
    tenth, means = max(enumerate(zip(a, b, strict=True), 1), key=lambda numbered: apart(numbered[1]))
    if apart(means) > APART:
        note = f"the losses of tenth {tenth} of the run are more than {APART:.0%} apart"
        yield Item("losses on the way", BLOCKING, f"{means[0]:.5g}", f"{means[1]:.5g}", note)


def _means(losses: Sequence[float]) -> list[float]:
    return [float(tenth.mean()) for tenth in np.array_split(losses, TENTHS)]
