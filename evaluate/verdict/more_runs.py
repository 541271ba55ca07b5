"""The clause of an undecided pair that says what would decide it: how many more runs, on which side, and how long.

The forecast keeps the ratio and the spread of the runs as they were observed. New runs change both, so it is an
expectation and no promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Forecast:
    """The terms of a forecast: what the verdict on more runs would be measured against."""

    band: float
    level: float
    """p-value that faster and slower would need, after the correction for the number of pairs."""
    seconds: tuple[float | None, float | None] = (None, None)
    """Wall time of a run on each side; None if unknown."""


def would_decide(found: Estimate, names: tuple[str, str], forecast: Forecast) -> str:
    """Return what would decide a pair, as a clause: `3 more runs on amd, about 40 minutes`."""
    copied = [place for place, _ in found.sides_without_spread if found.runs[place] > 1]
    if copied:
        return f"{inference.LEAST_RUNS} independent runs on {' and on '.join(names[place] for place in copied)}"
    alone = [place for place, _ in found.sides_without_spread]
    if len(alone) > 1:
        more = inference.LEAST_RUNS - 1
        return f"at least {_text((more, more), names, 'run')}{_time((more, more), forecast)}"
    counts = _smallest(_lent(found, alone), forecast)
    unit = "machine" if found.scope == inference.PRODUCTS else "run"
    if counts is None:
        return _never(found, forecast, unit)
    clause = _text(counts, names, unit) + (_time(counts, forecast) if unit == "run" else "")
    if alone:
        return f"{clause}, if the runs on {names[alone[0]]} vary as those on {names[1 - alone[0]]} do"
    return clause


def wall_seconds(side: Sequence[Result]) -> float | None:
    """Return the mean wall time of a side's runs in seconds; None if no run has recorded both of its times."""
    known = [(found[1] - found[0]).total_seconds() for result in side if (found := interval(result))]
    believable = [seconds for seconds in known if 0 < seconds < LONGEST_RUN_SECONDS]
    return math.fsum(believable) / len(believable) if believable else None


def _lent(found: Estimate, alone: Sequence[int]) -> Estimate:
    """Give a side with a single run the spread of a run on the other side, for the forecast alone."""
    if not alone:
        return found
    other = found.spreads[1 - alone[0]]
    assert other is not None
    lent = Spread(other.variance * other.values, 0.0, 1)
    return replace(found, spreads=(lent, other) if alone[0] == 0 else (other, lent))


def _smallest(found: Estimate, forecast: Forecast) -> tuple[int, int] | None:
    """Return how many more values on each side would decide in the shortest time; None if none in reach do."""
    assert found.spreads[0] and found.spreads[1]
    spreads = found.spreads[0], found.spreads[1]
    more = np.meshgrid(*(np.arange(_room(one) + 1) for one in spreads), indexing="ij")
    values = [np.maximum(2, one.values + extra) for one, extra in zip(spreads, more, strict=True)]
    variances = [one.variance * one.values / count for one, count in zip(spreads, values, strict=True)]
    degrees = [np.maximum(1.0, one.degrees + extra) for one, extra in zip(spreads, more, strict=True)]
    deviation = np.sqrt(variances[0] + variances[1])
    pair, freedom = (variances[0], variances[1]), (degrees[0], degrees[1])
    size = abs(math.log(found.ratio))
    if inference.is_beyond(found.ratio, forecast.band):
        decides = size > intervals.critical_value(forecast.level / found.selection, pair, freedom) * deviation
        decides &= np.minimum(found.runs[0] + more[0], found.runs[1] + more[1]) >= inference.LEAST_RUNS
    else:
        half = intervals.critical_value(inference.INTERVAL_LEVEL / found.selection, pair, freedom) * deviation
        decides = size + half <= math.log1p(forecast.band)
    decides &= (more[0] + more[1] > 0) & (more[0] + found.runs[0] > 1) & (more[1] + found.runs[1] > 1)
    if not decides.any():
        return None
    a, b = forecast.seconds
    cost = more[0] * a + more[1] * b if a and b else more[0] + more[1]
    order = np.lexsort((abs(more[0] - more[1]).ravel(), (more[0] + more[1]).ravel(), cost.ravel()))
    best = order[decides.ravel()[order]][0]
    return int(more[0].ravel()[best]), int(more[1].ravel()[best])


def _text(counts: tuple[int, int], names: tuple[str, str], unit: str) -> str:
    more = [f"{count} more {unit}{'' if count == 1 else 's'} on" for count in counts]
    if counts[0] == counts[1]:
        return f"{more[0]} each side"
    return " and ".join(f"{text} {name}" for text, name, count in zip(more, names, counts, strict=True) if count)


def _time(counts: tuple[int, int], forecast: Forecast) -> str:
    times = [seconds and count * seconds for count, seconds in zip(counts, forecast.seconds, strict=True) if count]
    known = [seconds for seconds in times if seconds is not None]
    if len(known) < len(times):
        return ""
    total = math.fsum(known)
    if total < 90:
        return f", about {max(1, round(total))} seconds"
    return f", about {round(total / 60)} minutes" if total < 90 * 60 else f", about {total / 3600:.1f} hours"


def _never(found: Estimate, forecast: Forecast, unit: str) -> str:
    widest = max(math.sqrt(one.variance * one.values) for one in found.spreads if one)
    why = f"{unit}s of one side differ by {math.expm1(widest):.1%} (standard deviation)"
    if not inference.is_beyond(found.ratio, forecast.band):
        apart = math.expm1(abs(math.log(found.ratio)))
        why += f", and the ratio is {apart:.1%} from 1 with a band of {forecast.band:.1%}"
    most = max(one.values + _room(one) for one in found.spreads if one)
    return f"no number of {unit}s up to {most} a side, because {why}"


def _room(spread: Spread) -> int:
    return max(MOST_RUNS - spread.values, LEAST_ROOM)
