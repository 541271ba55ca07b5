"""Rule of the learning rate: each step ran with the rate that the requested schedule gives it.

Source of the schedule: the learning-rate rows of train/settings_map; `WarmupCosine` of train/common/schedule.py states
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from evaluate.checks.recorded import is_complete
from utils.results.schema import Result

TOLERANCE = 1e-4
"""Share of the largest rate. A schedule that is late by one step differs by more in its warm-up, 1 / (W + 1)."""
OF_THE_SUITE = ("mega", "hf")
"""Frameworks whose schedule the suite sets to the last digit; the others have a rule of their own for the warm-up."""

Share = Callable[[int, int], float]
"""Function of step n and number of warm-up steps W; returns the share of the largest rate."""
_WARM_UP: tuple[Share, ...] = (lambda n, w: n / (w + 1),)
_OTHER_WARM_UPS: tuple[Share, ...] = (*_WARM_UP, lambda n, w: n / w, lambda n, w: (n - 1) / w)


def learning_rates_follow_the_schedule(result: Result) -> list[str]:
    """Return a line for the first step whose learning rate is not the one that was asked for."""
    if result["framework"] not in OF_THE_SUITE:
        return []
    found = _first_difference(result, _WARM_UP)
    return [found] if found else []


def learning_rates_follow_some_schedule(result: Result) -> list[str]:
    """Return a line if another framework's rates follow no known form of the requested schedule."""
    if result["framework"] in OF_THE_SUITE:
        return []
    found = _first_difference(result, _OTHER_WARM_UPS)
    return [found] if found else []


def learning_rate_is_on(result: Result) -> list[str]:
    """Return a line if steps ran with a rate of 0 or less, which change nothing, or above the requested one."""
    peak, rates = result["training_config"]["lr"], result["learning_rates"]
    if result["status"] != "ok" or not peak or peak <= 0:
        return []
    inside = [rate for rate in rates[1:-1] if rate is not None]  # a schedule may begin or end at 0
    if any(rate <= 0 for rate in inside):
        off = sum(rate <= 0 for rate in inside)
        return [f"learning_rates: {off} of {len(rates)} steps have a rate of 0, which trains nothing"]
    if highest := [rate for rate in rates if rate is not None and rate > peak * (1 + TOLERANCE)]:
        return [f"learning_rates: got {max(highest):.6g}, the largest one asked is {peak:.6g}"]
    return []


def _first_difference(result: Result, warm_ups: tuple[Share, ...]) -> str:
    config, rates = result["training_config"], result["learning_rates"]
    peak, least, warm, last = (config[key] for key in ("lr", "min_lr", "warmup_iters", "max_steps"))
    if None in (peak, least, warm, last) or None in rates or not is_complete(result):
        return ""
    if not rates or peak <= 0 or warm < 0 or last <= warm:
        return ""
    ends = (0, 1) if warm else (0,)  # without a warm-up the second form is the first one, early by a step
    best: tuple[int, float] | None = None
    for rule in warm_ups[: len(warm_ups) if warm else 1]:
        for late in ends:
            asked = _asked(tuple(result["steps"]), peak, least, warm, last, rule, late)
            place = _differs(rates, asked, peak)
            if place is None:
                return ""
            best = max(best or (-1, 0.0), (place, asked[place]))
    assert best is not None
    step, ran = result["steps"][best[0]], rates[best[0]]
    return f"learning_rates: step {step} ran with {ran:.6g}, the schedule asked for {best[1]:.6g}"


@lru_cache(maxsize=32)
def _asked(
    steps: tuple[int, ...], peak: float, least: float, warm: int, last: int, warm_up: Share, late: int
) -> tuple[float, ...]:
    """Return the rates of one form of the schedule: `late` 1 reaches the least rate at the last step, 0 one later."""
    rates = []
    for step in steps:
        if step <= warm:
            rates.append(peak * warm_up(step, warm))
        else:
            progress = (step - warm - 1 + late) / (last - warm)
            rates.append(least + (peak - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    return tuple(rates)


def _differs(rates: Sequence[float], asked: Sequence[float], peak: float) -> int | None:
    pairs = zip(rates, asked, strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if abs(a - b) > TOLERANCE * peak), None)
