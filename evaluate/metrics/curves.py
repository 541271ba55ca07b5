"""What two sides' loss curves say about whether they trained alike.

Equal weights and an equal first batch give an equal first loss. Later the curves may drift apart by rounding and by
kernels, so the end is compared as an equivalence: the difference has to lie in a band that is a share of the loss, and
so shrinks as the loss does; from three runs a side on, its whole 90 % interval has to (two one-sided tests at 5 %:
Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from utils.results.schema import Result

FIRST_LOSS_EQUAL_INIT = 1e-3
FIRST_LOSS_NATIVE_INIT = 0.02
"""Relative. Weights drawn by another generator from the same distribution differ in loss far less than this."""
LAST_LOSS = 0.02
"""Relative to the loss: the band of the mean over the last tenth of the steps."""
LAST_PART = 10
MEMORISED_NATS = 0.5
"""No text of a usable size is predicted this well unless it was seen before: a model of 8e9 parameters is near 2."""
ENOUGH_FOR_INTERVAL = 3


@dataclass(frozen=True)
class Finding:
    """One property of the curves: fine, not fine, or (None) not known."""

    name: str
    is_fine: bool | None
    a: str
    b: str
    note: str


def findings(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Finding]:
    """Yield the findings for two sides of ok results."""
    sides = (a, b)
    has_all = [all(one["loss_values"] and None not in one["loss_values"] for one in side) for side in sides]
    if not all(has_all):
        shown = ["known" if known else "unknown" for known in has_all]
        yield Finding("losses", None, shown[0], shown[1], "a loss is missing")
        return
    first = [[one["loss_values"][0] for one in side] for side in sides]
    last = [[last_loss(one) for one in side] for side in sides]
    has_equal_init = all(one["resolved_config"].get("init") == "equal" for side in sides for one in side)
    band = FIRST_LOSS_EQUAL_INIT if has_equal_init else FIRST_LOSS_NATIVE_INIT
    left, right = (statistics.fmean(side) for side in first)
    is_equal = abs(left - right) / min(left, right) <= band
    yield Finding(
        "initial loss", is_equal, _shown(left), _shown(right), f"initial losses differ by more than {band:.1%}"
    )
    yield _last(*last)
    lowest = [min(side) for side in last]
    is_unseen = min(lowest) > MEMORISED_NATS
    yield Finding(
        "unseen data", is_unseen, _shown(lowest[0]), _shown(lowest[1]), "a loss this small is of memorised data"
    )
    rises = [max(end - start for end, start in zip(*pair, strict=True)) for pair in zip(last, first, strict=True)]
    note = "the loss ends above where it began"
    yield Finding("convergence", max(rises) <= 0, f"{rises[0]:+.4g}", f"{rises[1]:+.4g}", note)


def last_loss(result: Result) -> float:
    """Return the mean loss over the last tenth of the steps, nats per token."""
    losses = result["loss_values"]
    return statistics.fmean(losses[-max(1, len(losses) // LAST_PART) :])


def _last(a: Sequence[float], b: Sequence[float]) -> Finding:
    left, right = statistics.fmean(a), statistics.fmean(b)
    half = _half_interval(a, b) if min(len(a), len(b)) >= ENOUGH_FOR_INTERVAL else 0.0
    is_fine = abs(right - left) + half <= LAST_LOSS * min(left, right)
    note = f"final losses are not shown to agree within {LAST_LOSS:.0%} of the loss"
    return Finding("final loss", is_fine, _shown(left), _shown(right), note)


def _half_interval(a: Sequence[float], b: Sequence[float]) -> float:
    """Return half the 90 % interval of the difference of two means (Welch); 0 where nothing varies."""
    from scipy.stats import ttest_ind

    if not statistics.variance(a) + statistics.variance(b):
        return 0.0
    interval = ttest_ind(a, b, equal_var=False).confidence_interval(0.9)
    return float(interval.high - interval.low) / 2


def _shown(value: float) -> str:
    return f"{value:.5g}"
