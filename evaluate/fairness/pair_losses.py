"""Certificate items on the loss curves of two sides, which show whether both trained alike.

Equal weights and an equal first batch give an equal first loss. Later the curves may drift apart through rounding and
different kernels, so the end is tested for equivalence: the difference has to lie in a band that is a share of the
loss, and so shrinks with it. From three runs a side on, the whole 90 % interval of the difference has to lie in the
band (two one-sided tests at 5 %: Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from evaluate.fairness.items import BLOCKING, SAME, UNKNOWN, Item
from evaluate.metrics.metrics import MEMORISED_NATS, last_loss
from utils.results.schema import Result

FIRST_LOSS_EQUAL_INIT = 1e-3
FIRST_LOSS_NATIVE_INIT = 0.02
"""Relative. The losses of weights that different generators draw from one distribution differ by far less than this."""
LAST_LOSS = 0.02
"""Relative to the loss: the band of the mean over the last tenth of the steps."""
ENOUGH_FOR_INTERVAL = 3


def items(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield the items for two sides of ok results; a single unknown item if a loss is missing."""
    sides = (a, b)
    has_all = [all(one["loss_values"] and None not in one["loss_values"] for one in side) for side in sides]
    if not all(has_all):
        shown = ["known" if known else "unknown" for known in has_all]
        yield Item("losses", UNKNOWN, shown[0], shown[1], "a loss is missing")
        return
    first = [[one["loss_values"][0] for one in side] for side in sides]
    last = [[last_loss(one) for one in side] for side in sides]
    has_equal_init = all(one["resolved_config"].get("init") == "equal" for side in sides for one in side)
    band = FIRST_LOSS_EQUAL_INIT if has_equal_init else FIRST_LOSS_NATIVE_INIT
    yield _initial(first[0], first[1], band)
    yield _final(last[0], last[1])
    lowest = [min(side) for side in last]
    note = "a loss this small is of memorised data"
    yield _item("unseen data", min(lowest) > MEMORISED_NATS, _shown(lowest[0]), _shown(lowest[1]), note)
    rises = [max(end - start for end, start in zip(*pair, strict=True)) for pair in zip(last, first, strict=True)]
    note = "the loss ends above where it began"
    yield _item("convergence", max(rises) <= 0, f"{rises[0]:+.4g}", f"{rises[1]:+.4g}", note)


def _initial(a: Sequence[float], b: Sequence[float], band: float) -> Item:
    left, right = statistics.fmean(a), statistics.fmean(b)
    is_equal = abs(left - right) / min(left, right) <= band
    note = f"initial losses differ by more than {band:.1%}"
    return _item("initial loss", is_equal, _shown(left), _shown(right), note)


def _final(a: Sequence[float], b: Sequence[float]) -> Item:
    left, right = statistics.fmean(a), statistics.fmean(b)
    half = _half_interval(a, b) if min(len(a), len(b)) >= ENOUGH_FOR_INTERVAL else 0.0
    is_equal = abs(right - left) + half <= LAST_LOSS * min(left, right)
    note = f"final losses are not shown to agree within {LAST_LOSS:.0%} of the loss"
    return _item("final loss", is_equal, _shown(left), _shown(right), note)


def _half_interval(a: Sequence[float], b: Sequence[float]) -> float:
    """Return half the 90 % interval of the difference of two means (Welch); 0 if nothing varies."""
    from scipy.stats import ttest_ind

    if not statistics.variance(a) + statistics.variance(b):
        return 0.0
    interval = ttest_ind(a, b, equal_var=False).confidence_interval(0.9)
    return float(interval.high - interval.low) / 2


def _item(name: str, is_fine: bool, a: str, b: str, note: str) -> Item:
    return Item(name, SAME if is_fine else BLOCKING, a, b, note)


def _shown(value: float) -> str:
    return f"{value:.5g}"
