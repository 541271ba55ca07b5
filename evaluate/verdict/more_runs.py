"""The clause of an undecided pair that says what would decide it: how many more runs, on which side, and how long.

The forecast keeps the ratio and the spread of the runs as they were observed. New runs change both, so it is an
expectation and no promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evaluate.checks.recorded import interval
from evaluate.metrics import intervals
from evaluate.verdict import inference
from evaluate.verdict.inference import Estimate, Spread
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
    copied = [place for place, _ in found.sides_without_spread if found.runs[place] > 1]
    if copied:
        return f"{inference.LEAST_RUNS} independent runs on {' and on '.join(names[place] for place in copied)}"
    alone = [place for place, _ in found.sides_without_spread]
    if len(alone) > 1:
        more = inference.LEAST_RUNS - 1
        return f"at least {_text((more, more), names, 'run')}{_time((more, more), seconds)}"
    for place in alone:  # the forecast lends it the spread of a run on the other side
        other = found.spreads[1 - place]
        assert other is not None
        lent = Spread(other.variance * other.values, 0.0, 1)
        found = replace(found, spreads=(other, lent) if place else (lent, other))
    counts = _smallest(found, band, level, seconds)
    unit = "machine" if found.scope == inference.PRODUCTS else "run"
    if counts is None:
        return _never(found, band, unit)
    clause = _text(counts, names, unit) + (_time(counts, seconds) if unit == "run" else "")
    if alone:
        return f"{clause}, if the runs on {names[alone[0]]} vary as those on {names[1 - alone[0]]} do"
    return clause


def wall_seconds(side: Sequence[Result]) -> float | None:
    """Return the mean wall time of a side's runs in seconds; None if no run has recorded both of its times."""
    known = [(found[1] - found[0]).total_seconds() for result in side if (found := interval(result))]
    believable = [seconds for seconds in known if 0 < seconds < LONGEST_RUN_SECONDS]
    return math.fsum(believable) / len(believable) if believable else None


def _smallest(found: Estimate, band: float, level: float, seconds: Seconds) -> tuple[int, int] | None:
    """Return how many more values on each side would decide in the shortest time; None if none in reach do."""
    assert found.spreads[0] and found.spreads[1]
    spreads = found.spreads[0], found.spreads[1]
    more = np.indices([_room(one) + 1 for one in spreads]).reshape(2, -1)
    values = [np.maximum(2, one.values + extra) for one, extra in zip(spreads, more, strict=True)]
    variances = [one.variance * one.values / count for one, count in zip(spreads, values, strict=True)]
    degrees = [np.maximum(1.0, one.degrees + extra) for one, extra in zip(spreads, more, strict=True)]
    deviation = np.sqrt(variances[0] + variances[1])
    pair, freedom = (variances[0], variances[1]), (degrees[0], degrees[1])
    size = abs(math.log(found.ratio))
    if inference.is_beyond(found.ratio, band):
        decides = size > intervals.critical_value(level / found.selection, pair, freedom) * deviation
        decides &= np.minimum(found.runs[0] + more[0], found.runs[1] + more[1]) >= inference.LEAST_RUNS
    else:
        half = intervals.critical_value(inference.INTERVAL_LEVEL / found.selection, pair, freedom) * deviation
        decides = size + half <= math.log1p(band)
    decides &= (more[0] + more[1] > 0) & (more[0] + found.runs[0] > 1) & (more[1] + found.runs[1] > 1)
    a, b = seconds
    cost = more[0] * a + more[1] * b if a and b else more[0] + more[1]
    order = np.lexsort((abs(more[0] - more[1]), more[0] + more[1], cost))
    best = next((place for place in order if decides[place]), None)
    return None if best is None else (int(more[0][best]), int(more[1][best]))


def _text(counts: tuple[int, int], names: tuple[str, str], unit: str) -> str:
    more = [f"{count} more {unit}{'' if count == 1 else 's'} on" for count in counts]
    if counts[0] == counts[1]:
        return f"{more[0]} each side"
    return " and ".join(f"{text} {name}" for text, name, count in zip(more, names, counts, strict=True) if count)


def _time(counts: tuple[int, int], seconds: Seconds) -> str:
    times = [of_a_run and count * of_a_run for count, of_a_run in zip(counts, seconds, strict=True) if count]
    if None in times:
        return ""
    total = math.fsum(filter(None, times))
    if total < 90:
        return f", about {max(1, round(total))} seconds"
    return f", about {round(total / 60)} minutes" if total < 90 * 60 else f", about {total / 3600:.1f} hours"


def _never(found: Estimate, band: float, unit: str) -> str:
    widest = max(math.sqrt(one.variance * one.values) for one in found.spreads if one)
    why = f"{unit}s of one side differ by {math.expm1(widest):.1%} (standard deviation)"
    if not inference.is_beyond(found.ratio, band):
        why += f", and the ratio is {math.expm1(abs(math.log(found.ratio))):.1%} from 1 with a band of {band:.1%}"
    most = max(one.values + _room(one) for one in found.spreads if one)
    return f"no number of {unit}s up to {most} a side, because {why}"


def _room(spread: Spread) -> int:
    return max(MOST_RUNS - spread.values, LEAST_ROOM)
