"""The floor of a step: the least time of one rank for the operators and collectives of a job, by its probe.

    floor of a kind  = sum over its calls of count * min(seconds, warm_seconds)
    compute          = sum over the kinds of computation
    exposed          = max(0, collectives - compute), as if all communication ran beside computation
    floor of a step  = compute + exposed = max(compute, collectives)

Spread (half widths of 95 % intervals): the operators of a kind are measured one after the other in one state of the
machine, so their errors are taken as fully correlated and add up, which is the widest case; those of different kinds
are taken as independent and add as squares. The floor has the spread of the larger of compute and collectives. Copies
between host and device, waits, pipeline bubbles and transfers between pipeline stages have no floor: they count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from evaluate.floor import collectives
from evaluate.floor.collectives import FloorError
from utils.kinds import COMMUNICATION, COMPUTE, HOST_COPY, KINDS
from utils.results.probe_file import JobOperators, OperatorTime, Probe

__all__ = ("Floor", "FloorError", "TimedCall", "mean", "of_job")
LONGEST_SECONDS = 1e6
"""Longer than any step."""


@dataclass(frozen=True)
class TimedCall:
    """All calls of one operator with the same shapes in a step."""

    operator: OperatorTime
    count: float
    seconds: float
    """Of all calls."""


@dataclass(frozen=True)
class Floor:
    """The floor of a step of one rank."""

    by_kind: Mapping[str, float]
    """All of KINDS, in seconds."""
    spread_percent: float
    """Half width of the 95 % interval of the sum, in percent."""
    flops: float
    """Floating-point operations of the products of one rank."""
    calls: tuple[TimedCall, ...]
    remarks: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The floor of the whole step."""
        return math.fsum(self.by_kind.values())


def of_job(probe: Probe, job: JobOperators, nodes: int) -> Floor:
    """Return the floor of a job on `nodes` machines; raise FloorError if a part of it was not measured."""
    calls = tuple(_timed(probe.operators[place], count) for place, count in job.calls)
    calls = tuple(call for call in calls if call.operator.kind != HOST_COPY)
    if any(not call.seconds < LONGEST_SECONDS for call in calls):
        raise FloorError(f"{probe.path.name} has an operator whose calls take longer than any step")
    if not calls:
        raise FloorError(f"{probe.path.name} has no operator of {job.framework} {job.model}")
    by_kind, widths = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    for call in calls:
        kind = call.operator.kind
        if kind not in COMPUTE:
            raise FloorError(f"{call.operator.name} has the kind {kind!r}, wanted one of {', '.join(COMPUTE)}")
        by_kind[kind] += call.seconds
        widths[kind] += call.seconds * call.operator.spread_percent / 100
    compute = math.fsum(by_kind.values())
    width = math.hypot(*widths.values())
    sent = collectives.of_step(probe, job, nodes)
    if sent.seconds > compute:
        by_kind[COMMUNICATION] = sent.seconds - compute
        width = sent.width_seconds
    total = max(compute, sent.seconds)
    if not 0 < total < LONGEST_SECONDS:
        raise FloorError(f"{probe.path.name} gives a floor of {total:g} s, which no step has")
    flops = math.fsum(call.operator.flops * call.count for call in calls)
    return Floor(by_kind, 100 * width / total, flops, calls, (*_estimated(calls, total), *sent.remarks))


def mean(floors: list[Floor]) -> Floor:
    """Return the mean floor of several machines of one side, whose probes are independent of one another."""
    first, count = floors[0], len(floors)
    if count == 1:
        return first
    by_kind = {kind: math.fsum(floor.by_kind[kind] for floor in floors) / count for kind in KINDS}
    width = math.hypot(*(floor.seconds * floor.spread_percent / 100 for floor in floors)) / count
    remarks = tuple(dict.fromkeys(remark for floor in floors for remark in floor.remarks))
    return Floor(by_kind, 100 * width / math.fsum(by_kind.values()), first.flops, first.calls, remarks)


def _timed(operator: OperatorTime, count: float) -> TimedCall:
    return TimedCall(operator, count, count * operator.least_seconds)


def _estimated(calls: tuple[TimedCall, ...], total: float) -> list[str]:
    """Return a remark on the share of the floor that no operator's own time stands behind."""
    seconds = math.fsum(call.seconds for call in calls if call.operator.method == "bandwidth")
    if seconds < 0.005 * total:
        return []
    share = f"{100 * seconds / total:.0f} %"
    return [f"{share} of the floor is of operators that were not run: bytes over the measured bandwidth"]
