"""The clause of an undecided pair that says what would decide it: how many more runs, on which side, and how long.

The forecast keeps the ratio and the spread of the runs as they were observed. New runs change both, so it is an
expectation and no promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evaluate.checks.recorded import interval
from evaluate.metrics import intervals
from evaluate.verdict import inference
from evaluate.verdict.inference import Estimate, Spread
from utils.errors import counted
from utils.results.schema import Result

MOST_RUNS = 20
"""Largest number of runs (or machines) a side in a forecast; more hardly narrow an interval."""
LEAST_ROOM = 10
"""Further runs that a forecast tries on a side that has about as many already."""
LONGEST_RUN_SECONDS = 30 * 24 * 3600
"""A longer time between start and end is no time of a benchmark."""


Seconds = tuple[float | None, float | None]
"""Wall time of a run on each side; None if unknown."""


def would_decide(
    found: Estimate, names: tuple[str, str], band: float, level: float, seconds: Seconds = (None, None)
) -> str:
    """Return what would decide a pair, as a clause: `3 more runs on amd, about 40 minutes`.

    `level` is the p-value that faster and slower would need, after the correction for the number of pairs.
    """
    without = [side for side, _ in found.sides_without_spread]
    copied = [names[side] for side in without if found.runs[side] > 1]
    # more copies of one run would not help either
    if copied:
        return f"{inference.LEAST_RUNS} independent runs on {' and on '.join(copied)}"
    if len(without) > 1:
        more = inference.LEAST_RUNS - 1
        return f"at least {_text((more, more), names, 'run')}{_time((more, more), seconds)}"
    for side in without:  # the forecast lends it the spread of a run on the other side
        other = found.spreads[1 - side]
        assert other is not None
        lent = Spread(other.variance * other.values, 0.0, 1)
        found = replace(found, spreads=(other, lent) if side else (lent, other))
    counts = _smallest(found, band, level, seconds)
    unit = "machine" if found.scope == inference.PRODUCTS else "run"
    if counts is None:
        return _never(found, band, unit)
    clause = _text(counts, names, unit)
    if unit == "run":
        clause += _time(counts, seconds)
    for side in without:
        clause += f", if the runs on {names[side]} vary as those on {names[1 - side]} do"
    return clause


def wall_seconds(side: Sequence[Result]) -> float | None:
    """Return the mean wall time of a side's runs in seconds; None if no run has recorded both of its times."""
    known = []
    for result in side:
        times = interval(result)
        if times is None:
            continue
        seconds = (times[1] - times[0]).total_seconds()
        if 0 < seconds < LONGEST_RUN_SECONDS:
            known.append(seconds)
    return math.fsum(known) / len(known) if known else None


def _smallest(found: Estimate, band: float, level: float, seconds: Seconds) -> tuple[int, int] | None:
    """Return how many more values on each side would decide in the shortest time; None if none in reach do."""
    a, b = found.spreads
    assert a and b
    # every combination of further runs at once: two rows of equal length
    more_a, more_b = np.indices((_room(a) + 1, _room(b) + 1)).reshape(2, -1)
    variances = _variances(a, more_a), _variances(b, more_b)
    degrees = np.maximum(1.0, a.degrees + more_a), np.maximum(1.0, b.degrees + more_b)
    deviation = np.sqrt(variances[0] + variances[1])
    runs_a, runs_b = found.runs[0] + more_a, found.runs[1] + more_b
    size = abs(math.log(found.ratio))
    # outside the band only a difference can be shown, inside it only a tie
    if inference.is_beyond(found.ratio, band):
        needed = intervals.critical_value(level / found.selection, variances, degrees) * deviation
        decides = (size > needed) & (np.minimum(runs_a, runs_b) >= inference.LEAST_RUNS)
    else:
        half = intervals.critical_value(inference.INTERVAL_LEVEL / found.selection, variances, degrees) * deviation
        decides = size + half <= math.log1p(band)
    more = more_a + more_b
    decides &= (more > 0) & (runs_a > 1) & (runs_b > 1)
    cost = more
    if seconds[0] and seconds[1]:
        cost = more_a * seconds[0] + more_b * seconds[1]
    for place in np.lexsort((abs(more_a - more_b), more, cost)):
        if decides[place]:
            return int(more_a[place]), int(more_b[place])
    return None


def _variances(spread: Spread, more: Any) -> Any:
    """Return the variance of the mean of a side with so many more values, of which each varies as those it has."""
    return spread.variance * spread.values / np.maximum(2, spread.values + more)


def _text(counts: tuple[int, int], names: tuple[str, str], unit: str) -> str:
    if counts[0] == counts[1]:
        return f"{counted(counts[0], f'more {unit}')} on each side"
    parts = []
    for count, name in zip(counts, names, strict=True):
        if count:
            parts.append(f"{counted(count, f'more {unit}')} on {name}")
    return " and ".join(parts)


def _time(counts: tuple[int, int], seconds: Seconds) -> str:
    """Return the wall time of more runs; empty if that of a run is unknown."""
    total = 0.0
    for count, of_a_run in zip(counts, seconds, strict=True):
        if count and of_a_run is None:
            return ""
        total += count * (of_a_run or 0.0)
    if total < 90:
        return f", about {max(1, round(total))} seconds"
    if total < 90 * 60:
        return f", about {round(total / 60)} minutes"
    return f", about {total / 3600:.1f} hours"


def _never(found: Estimate, band: float, unit: str) -> str:
    widest = max(math.sqrt(one.variance * one.values) for one in found.spreads if one)
    why = f"{unit}s of one side differ by {math.expm1(widest):.1%} (standard deviation)"
    if not inference.is_beyond(found.ratio, band):
        why += f", and the ratio is {math.expm1(abs(math.log(found.ratio))):.1%} from 1 with a band of {band:.1%}"
    most = max(one.values + _room(one) for one in found.spreads if one)
    return f"no number of {unit}s up to {most} a side, because {why}"


def _room(spread: Spread) -> int:
    return max(MOST_RUNS - spread.values, LEAST_ROOM)
