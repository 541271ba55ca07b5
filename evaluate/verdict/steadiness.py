"""The check that each run of a pair has a steady state, which a verdict needs.

A run whose last level of step times is too short has no steady state, and a pair with such a run is undecided. A run
that drifts has no single level: its mean depends on the number of steps. It counts only if the verdict would be the
same with each drifting run at the level on which its steps end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evaluate.metrics import steady
from utils.results.schema import Result

WOULD_DECIDE = "with more steps, or without other work on the machine"


@dataclass(frozen=True)
class Unsteady:
    """The runs of a pair without a steady state, by their names."""

    without: tuple[str, ...]
    """Runs without any steady level."""
    drifting: tuple[str, ...]
    """Runs whose steady steps keep becoming slower or faster."""


def unsteady(names: Sequence[str], sides: Sequence[Sequence[Result]]) -> Unsteady:
    """Return the runs of both sides that have no steady state, and those that drift."""
    without, drifting = [], []
    for name, side in zip(names, sides, strict=True):
        for result in side:
            part, run = steady.of_result(result), f"run {result['run']} of {name}"
            if part is None or part.label == steady.NO_STEADY_STATE:
                count = len(result["step_times"]) - part.first if part else 0
                short = f" ({count} steps after the first ones, {steady.LEAST_STEPS} are the least)"
                without.append(run + short * (count < steady.LEAST_STEPS))
            elif part.is_drifting:
                drifting.append(run)
    return Unsteady(tuple(without), tuple(drifting))


def shift_to_the_end(result: Result) -> float:
    """Return the change of log throughput from the mean of a drifting run to its end; 0 for a run that is steady."""
    part = steady.of_result(result)
    return -math.log1p(part.drift) / 2 if part and part.is_drifting and part.drift is not None else 0.0


def listed(runs: Sequence[str], most: int = 3) -> str:
    """Return names as words, `most` of them at the most."""
    more = f" and {len(runs) - most} more" if len(runs) > most else ""
    return ", ".join(runs[:most]) + more
