"""The losses of a step: measured time less floor of each kind, with the operators that lose most.

An operator of the trace meets the one of the probe that computes the same with the same sizes, or else all of its
name. What both have is compared; an operator that only the trace has is lost time as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evaluate.floor.floors import TimedCall
from evaluate.floor.parts import Loss
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.shapes import work_of
from evaluate.timing.tables import OperatorRow
from utils.kinds import IDLE, UNATTRIBUTED, WORDS

MOST_NAMED = 2
LEAST_SHARE = 0.1
"""Share of a kind's loss from which on an operator is named."""
LEAST_LOSS = 5e-4
"""Share of the step below which a kind is neither slower nor faster than its floor."""
LONGEST_SIZES = 60


class _Excess(NamedTuple):
    seconds: float
    label: str


def duration(seconds: float) -> str:
    """Return a time with three significant digits: `1.23 s`, `45.6 ms`, `7.89 us`."""
    size = abs(seconds)
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if size >= unit:
            return f"{_three(seconds / unit)} {name}"
    return f"{_three(seconds * 1e6)} us"


def _three(value: float) -> str:
    """Return a number with three significant digits, never in powers of ten."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits)}f}"


def whole(seconds: float) -> tuple[Loss, ...]:
    """Return the loss of a side without a profile: everything above the floor."""
    words = f"{duration(seconds)} over the floor, not divided, because there is no profile of this job and machine"
    return (Loss(UNATTRIBUTED, seconds, words),)


def by_kind(
    measured: Mapping[str, float],
    floor: Mapping[str, float],
    calls: Sequence[TimedCall],
    trace: Breakdown,
    data_wait: float | None,
) -> tuple[Loss, ...]:
    """Return the losses of all kinds, the largest first; they sum to the measured step less its floor.

    `data_wait` is the part of a step in which the job waits for data, in seconds; None if it is not known.
    """
    found = []
    step = math.fsum(measured.values())
    for kind, seconds in measured.items():
        loss = seconds - floor[kind]
        if not seconds and not floor[kind]:
            continue
        words = _words(kind, loss, step)
        if kind == IDLE:
            words += _data(loss, data_wait)
        elif loss > LEAST_LOSS * step:
            words += _named(kind, loss, calls, trace)
        found.append(Loss(kind, loss, words))
    return tuple(sorted(found, key=lambda one: -one.seconds))


def _words(kind: str, loss: float, step: float) -> str:
    if abs(loss) <= LEAST_LOSS * step:
        return f"{WORDS[kind]}: at the floor"
    if kind == IDLE:
        return f"{WORDS[kind]}: {duration(loss)}"
    return f"{WORDS[kind]}: {duration(abs(loss))} {'over' if loss > 0 else 'below'} the floor"


def _data(loss: float, data_wait: float | None) -> str:
    """Return the division of idle time; all of it but the wait for data is the host's own."""
    if data_wait is None:
        return "; the wait for data in it is not known"
    waited = min(max(loss, 0.0), data_wait)
    if waited < 0.005 * loss:
        return ", launch gaps and other waits of the host"
    return f": {duration(waited)} wait for data, {duration(loss - waited)} launch gaps and other waits of the host"


def _named(kind: str, loss: float, calls: Sequence[TimedCall], trace: Breakdown) -> str:
    largest = [one for one in _excesses(kind, calls, trace) if one.seconds > LEAST_SHARE * loss][:MOST_NAMED]
    return f", mostly {' and '.join(one.label for one in largest)}" if largest else ""


def _excesses(kind: str, calls: Sequence[TimedCall], trace: Breakdown) -> list[_Excess]:
    """Return what each operator of a kind takes above its floor, the largest first."""
    floors: dict[tuple[str, str], float] = {}
    names: dict[tuple[str, str], str] = {}
    for call in calls:
        if call.operator.kind == kind:
            key = _key(call)
            floors[key] = floors.get(key, 0.0) + call.seconds
            names[key] = call.operator.name
    rows = [row for row in trace.operators if row.kind == kind]
    exact: dict[tuple[str, str], list[OperatorRow]] = {}
    others: dict[str, list[OperatorRow]] = {}
    for row in rows:
        key = (row.work.family, row.work.sizes)
        if key in floors:
            exact.setdefault(key, []).append(row)
        else:
            others.setdefault(row.name, []).append(row)
    unmet: dict[str, float] = {}
    for key, seconds in floors.items():
        if key not in exact:
            unmet[names[key]] = unmet.get(names[key], 0.0) + seconds
    found = [_Excess(_seconds(group) - floors[key], _label(group[0])) for key, group in exact.items()]
    found += [_Excess(_seconds(group) - unmet.get(name, 0.0), _label(group[0])) for name, group in others.items()]
    return sorted(found, key=lambda one: -one.seconds)


def _key(call: TimedCall) -> tuple[str, str]:
    """Return computation and sizes of a probe's operator, as the tables of a trace have them."""
    operator = call.operator
    work = work_of(operator.name, (str(_lists(operator.shapes)), "", ""))
    return work.family, work.sizes


def _lists(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return []


def _seconds(rows: Sequence[OperatorRow]) -> float:
    return math.fsum(row.seconds for row in rows)


def _label(row: OperatorRow) -> str:
    """Return the name of an operator with its sizes, if they are short."""
    sizes = row.work.sizes
    return f"{row.name} {sizes}" if sizes and len(sizes) <= LONGEST_SIZES else row.name
