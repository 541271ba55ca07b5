"""Rules of the course of a training: losses and gradient norms change from step to step as those of real batches do."""

from __future__ import annotations

import statistics

from evaluate.checks.recorded import is_complete, longest_equal
from utils.results.schema import Result

EQUAL_IN_A_ROW = 10
"""Losses of other batches, or their gradient norms, never agree to nine digits this often in a row."""
ENOUGH_NORMS = 5
AT_THE_LIMIT = 1e-3
"""Relative. A norm after clipping is the limit itself, up to rounding."""
MOST_AT_THE_LIMIT = 0.25
"""Share of the steps. A norm before clipping meets the limit by chance only."""
RUNAWAY = 100.0


def losses_change(result: Result) -> list[str]:
    """Return a line if the loss stays at one value: every step has another batch and other weights."""
    count = longest_equal(result["loss_values"])
    if not is_complete(result) or count < EQUAL_IN_A_ROW:
        return []
    return [f"loss_values: {count} equal losses in a row; another batch has another loss"]


def gradients_are_there(result: Result) -> list[str]:
    """Return a line if a gradient norm is 0 or less: the loss is above 0, so every step has a gradient."""
    norms = [norm for norm in result["grad_norms"] if norm is not None]
    none = [norm for norm in norms if norm <= 0]
    if not is_complete(result) or not none:
        return []
    return [f"grad_norms: {len(none)} of {len(norms)} are {none[0]:g}, wanted more than 0"]


def gradients_change(result: Result) -> list[str]:
    """Return a line if the gradient norm stays at one value."""
    norms = result["grad_norms"]
    count = longest_equal(norms)
    if not is_complete(result) or count < min(EQUAL_IN_A_ROW, max(ENOUGH_NORMS, len(norms))):
        return []
    return [f"grad_norms: {count} equal norms in a row; another batch has another gradient"]


def gradients_are_before_clipping(result: Result) -> list[str]:
    """Return a line if many norms are the limit of clipping itself, and none is above it."""
    norms, limit = [norm for norm in result["grad_norms"] if norm is not None], result["training_config"]["clip_grad"]
    if not is_complete(result) or not limit or limit <= 0 or len(norms) < ENOUGH_NORMS:
        return []
    at_limit = sum(abs(norm - limit) <= AT_THE_LIMIT * limit for norm in norms)
    if at_limit < MOST_AT_THE_LIMIT * len(norms) or max(norms) > limit * (1 + AT_THE_LIMIT):
        return []
    return [f"grad_norms: {at_limit} of {len(norms)} are the limit {limit:g}; norms are recorded before clipping"]


def gradients_fit_the_limit(result: Result) -> list[str]:
    """Return a line if nearly every update is cut to less than a hundredth, so that the norm is not the loss's."""
    norms, limit = [norm for norm in result["grad_norms"] if norm is not None], result["training_config"]["clip_grad"]
    if not is_complete(result) or not limit or limit <= 0 or not norms or statistics.median(norms) <= RUNAWAY * limit:
        return []
    return [
        f"grad_norms: {statistics.median(norms):.3g} in the median, {RUNAWAY:g} times the limit of clipping or more"
    ]
