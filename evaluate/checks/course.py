"""Rules of the course of a training: losses and gradient norms change from step to step as those of real batches do,
and each step ran with the learning rate that the requested schedule gives it.

Source of the schedule: the learning-rate rows of train/settings_map; `WarmupCosine` of train/common/adamw.py states
it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from evaluate.checks.recorded import is_complete, longest_equal
from evaluate.metrics.steady import Floats
from utils.frameworks import of
from utils.results.schema import Result

EQUAL_IN_A_ROW = 10
"""Losses of other batches, or their gradient norms, never agree to nine digits this often in a row."""
ENOUGH_NORMS = 5
AT_THE_LIMIT = 1e-3
"""Relative. A norm after clipping is the limit itself, up to rounding."""
MOST_AT_THE_LIMIT = 0.25
"""Share of the steps. A norm before clipping meets the limit by chance only."""
RUNAWAY = 100.0
TOLERANCE = 1e-4
"""Share of the largest rate. A schedule that is late by one step differs by more in its warm-up, 1 / (W + 1)."""

WarmUp = Callable[[Floats, int], Floats]
"""Function of steps n and number of warm-up steps W; returns the shares of the largest rate."""
WARM_UP: tuple[WarmUp, ...] = (lambda n, w: n / (w + 1),)
OTHER_WARM_UPS: tuple[WarmUp, ...] = (*WARM_UP, lambda n, w: n / w, lambda n, w: (n - 1) / w)


def losses_change(result: Result) -> Iterator[str]:
    """Yield a line if the loss stays at one value: every step has another batch and other weights."""
    # not of a log, which prints rounded losses: two of them may well be equal
    count = longest_equal(result["loss_values"])
    if is_complete(result) and count >= EQUAL_IN_A_ROW:
        yield f"loss_values: {count} equal losses in a row; another batch has another loss"


def gradients_are_of_real_batches(result: Result) -> Iterator[str]:
    """Yield a line if a gradient norm is 0 or less, if the norm stays at one value, or if many norms are the limit of
    clipping itself and none is above it: they are recorded before clipping."""
    norms, limit = _known(result["grad_norms"]), result["training_config"]["clip_grad"]
    if not is_complete(result):
        return
    none = [norm for norm in norms if norm <= 0]
    if none:
        yield f"grad_norms: {len(none)} of {len(norms)} are {none[0]:g}, wanted more than 0"
    count = longest_equal(result["grad_norms"])
    # a short training is judged too: all of its norms are equal
    if count >= min(EQUAL_IN_A_ROW, max(ENOUGH_NORMS, len(norms))):
        yield f"grad_norms: {count} equal norms in a row; another batch has another gradient"
    # a framework that returns the norm after clipping shows no norm above the limit
    if limit and limit > 0 and len(norms) >= ENOUGH_NORMS and max(norms) <= limit * (1 + AT_THE_LIMIT):
        at_limit = [norm for norm in norms if abs(norm - limit) <= AT_THE_LIMIT * limit]
        if len(at_limit) >= MOST_AT_THE_LIMIT * len(norms):
            count = len(at_limit)
            yield f"grad_norms: {count} of {len(norms)} are the limit {limit:g}; norms are recorded before clipping"


def gradients_fit_the_limit(result: Result) -> Iterator[str]:
    """Yield a line if nearly every update is cut to less than a hundredth, so that the norm is not the loss's."""
    norms, limit = _known(result["grad_norms"]), result["training_config"]["clip_grad"]
    if not is_complete(result) or not norms or not limit or limit <= 0:
        return
    middle = statistics.median(norms)
    if middle > RUNAWAY * limit:
        yield f"grad_norms: {middle:.3g} in the median, {RUNAWAY:g} times the limit of clipping or more"


def learning_rate_is_on(result: Result) -> Iterator[str]:
    """Yield a line if steps ran with a rate of 0 or less, which change nothing, or above the requested one."""
    peak, rates = result["training_config"]["lr"], result["learning_rates"]
    if not peak:
        return
    off = [rate for rate in _known(rates[1:-1]) if rate <= 0]  # a schedule may begin or end at 0
    highest = max(_known(rates), default=0.0)
    if off:
        yield f"learning_rates: {len(off)} of {len(rates)} steps have a rate of 0, which trains nothing"
    elif highest > peak * (1 + TOLERANCE):
        yield f"learning_rates: got {highest:.6g}, the largest one asked is {peak:.6g}"


def _known(samples: Sequence[float | None]) -> list[float]:
    return [sample for sample in samples if sample is not None]


def learning_rates_follow_the_schedule(result: Result) -> Iterator[str]:
    """Yield a line for the first step whose learning rate is not the one that was asked for."""
    # what our own code builds has the schedule to the last digit; the others have a rule of their own for the warm-up
    if of(result["framework"]).built_from:
        yield from _unlike_the_schedule(result, WARM_UP)


def learning_rates_follow_some_schedule(result: Result) -> Iterator[str]:
    """Yield a line if another framework's rates follow no known form of the requested schedule."""
    if not of(result["framework"]).built_from:
        yield from _unlike_the_schedule(result, OTHER_WARM_UPS)


def _unlike_the_schedule(result: Result, warm_ups: tuple[WarmUp, ...]) -> Iterator[str]:
    """Yield a line on the step at which the form of the schedule that fits longest ends to fit; none if one fits."""
    config, rates = result["training_config"], result["learning_rates"]
    peak, least, warm, last = config["lr"], config["min_lr"], config["warmup_iters"], config["max_steps"]
    if not is_complete(result) or not rates or None in (peak, least, warm, last, *rates):
        return
    if peak == 0 or last <= warm:  # the cosine has no steps
        return
    steps, ran = np.asarray(result["steps"], dtype=float), np.asarray(rates, dtype=float)
    longest, asked_there = -1, 0.0
    # a cosine reaches the least rate one step after the last one, or at it
    forms = [(warm_up, late) for warm_up in warm_ups for late in (0, 1)]
    if not warm:  # the forms are one then
        forms = [(WARM_UP[0], 0)]
    for warm_up, late in forms:
        progress = np.clip((steps - warm - 1 + late) / (last - warm), 0.0, 1.0)
        cosine = least + (peak - least) * (1 + np.cos(np.pi * progress)) / 2
        asked = np.where(steps <= warm, peak * warm_up(steps, warm), cosine)
        differs = np.abs(ran - asked) > TOLERANCE * peak
        if not differs.any():
            return
        place = int(differs.argmax())
        # of the forms that do not fit, the message is about the one that fits longest
        longest, asked_there = max((longest, asked_there), (place, float(asked[place])))
    step, rate = result["steps"][longest], rates[longest]
    yield f"learning_rates: step {step} ran with {rate:.6g}, the schedule asked for {asked_there:.6g}"
