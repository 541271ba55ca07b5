"""The check that each run of a pair has a steady state, which a verdict needs.

A run whose last level of step times is too short has no steady state, and a pair with such a run is undecided. A run
that drifts has no single level: its mean depends on the number of steps. It counts only if the verdict would be the
same with each drifting run at the level on which its steps end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluate.metrics import steady
from utils.results.schema import Result

WOULD_DECIDE = "with more steps, or without other work on the machine"


def unsteady(sides: Iterable[tuple[str, Sequence[Result]]]) -> tuple[list[str], list[str]]:
    """Return the names of the runs without any steady level, and of those whose steady steps keep becoming slower or
    faster, from the name and the runs of each side."""
    without: list[str] = []
    drifting: list[str] = []
    for name, side in sides:
        for result in side:
            part, run = steady.of_result(result), f"run {result['run']} of {name}"
            if part is None or part.label == steady.NO_STEADY_STATE:
                count = len(result["step_times"]) - part.first if part else 0
                short = f" ({count} steps after the first ones, {steady.LEAST_STEPS} are the least)"
                without.append(run + short * (count < steady.LEAST_STEPS))
            elif part.is_drifting:
                drifting.append(run)
    return without, drifting


def shift_to_the_end(result: Result) -> float:
    """Return the change of log throughput from the mean of a drifting run to its end; 0 for a run that is steady."""
    part = steady.of_result(result)
    return -math.log1p(part.drift) / 2 if part and part.is_drifting and part.drift is not None else 0.0


def listed(runs: Sequence[str], most: int = 3) -> str:
    """Return names as words, `most` of them at the most."""
    more = f" and {len(runs) - most} more" if len(runs) > most else ""
    return ", ".join(runs[:most]) + more
