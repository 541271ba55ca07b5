"""Do the machines of one side differ by more than their own runs? Then a claim about the product needs several."""

from __future__ import annotations

import math
import statistics as descriptive
from collections.abc import Sequence

from evaluate.statistics import Run

NOISE = 3.0
"""Machines that are further apart than this many standard deviations of a run are different ones."""


def between_machines(name: str, runs: Sequence[Run]) -> str:
    """Return what is to be said of the machines of a side; empty for one machine, and where they hardly differ.

    A machine counts by the median of its runs. With a single run a machine nothing is known of its noise.
    """
    by_machine: dict[str, list[float]] = {}
    for run in runs:
        by_machine.setdefault(run.machine, []).append(run.log_throughput)
    middles = [descriptive.median(logs) for logs in by_machine.values()]
    spreads = [descriptive.stdev(logs) for logs in by_machine.values() if len(logs) > 1]
    widest = max(middles) - min(middles)
    if not spreads or widest <= NOISE * max(spreads):
        return ""
    return (
        f"{name}: its {len(by_machine)} machines differ by {math.expm1(widest):.1%} and the runs of one by "
        f"{max(spreads):.2%} at most, so a claim about the product needs several machines on both sides"
    )
