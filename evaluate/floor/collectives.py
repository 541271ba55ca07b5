"""The time of a job's collectives, from those that a probe measured.

Between two measured sizes the logarithm of the time is interpolated over the logarithm of the size. Above the largest
size the time is unknown. Below the smallest one it counts as 0, which keeps the floor a floor, with a remark. A group
smaller than the job may lie inside one machine or across machines; the faster one counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from utils.results.probe_file import CollectiveTime, JobOperators, Probe


class FloorError(ValueError):
    """A floor cannot be calculated; the message is the reason."""


@dataclass(frozen=True)
class Sent:
    """The collectives of a step."""

    seconds: float
    width_seconds: float
    """Half width of the 95 % interval; the errors of all sizes are taken as fully correlated."""
    remarks: tuple[str, ...]


def of_step(probe: Probe, job: JobOperators, nodes: int) -> Sent:
    """Return the time of a step's collectives on `nodes` machines, one after the other.

    Raises FloorError for a collective that the probe did not measure.
    """
    seconds, width, small, between = 0.0, 0.0, 0.0, 0.0
    for one in job.collectives:
        ranks, size, count = int(one["ranks"]), float(one["bytes"]), float(one["count"])
        if ranks == 1 or not count:
            continue
        if not ranks:
            between += count
            continue
        found = _measured(probe, one, ranks, nodes)
        if size < found[0].bytes:
            small += count
            continue
        once, spread = _interpolated(found, size)
        seconds += count * once
        width += count * once * spread / 100
    remarks = []
    if small:
        remarks.append(f"{small:g} collectives a step are smaller than the measured ones and count as 0 in the floor")
    if between:
        remarks.append(f"{between:g} transfers a step between pipeline stages count as 0 in the floor")
    return Sent(seconds, width, tuple(remarks))


def _measured(probe: Probe, one: Mapping[str, Any], ranks: int, nodes: int) -> list[CollectiveTime]:
    """Return the measured sizes of a collective, rising, of the number of nodes on which it is fastest."""
    name, size = _short(str(one["name"])), float(one["bytes"])
    alike = [time for time in probe.collectives if _short(time.name) == name and time.ranks == ranks and time.bytes]
    groups = [[time for time in alike if time.nodes == count] for count in range(1, nodes + 1)]
    groups = [sorted(group, key=lambda time: time.bytes) for group in groups if group]
    what = f"{one['name']} of {size:,.0f} bytes over {ranks} ranks"
    if not groups:
        raise FloorError(f"{probe.path.name} has no time of {what}")
    fitting = [group for group in groups if size <= group[-1].bytes]
    if not fitting:
        largest = max(group[-1].bytes for group in groups)
        raise FloorError(f"{probe.path.name} has no time of {what}: the largest measured size is {largest:,.0f} bytes")
    return min(fitting, key=lambda group: _interpolated(group, max(size, group[0].bytes))[0])


def _short(name: str) -> str:
    """Return a collective's name as both files may write it: `all_reduce`, `allreduce_`."""
    return name.lower().rpartition(":")[2].replace("_", "")


def _interpolated(times: Sequence[CollectiveTime], size: float) -> tuple[float, float]:
    """Return seconds and spread in percent at a size between the smallest and the largest measured one."""
    above = next(place for place, time in enumerate(times) if time.bytes >= size)
    upper = times[above]
    if upper.bytes == size or not above:
        return upper.seconds, upper.spread_percent
    lower = times[above - 1]
    share = math.log(size / lower.bytes) / math.log(upper.bytes / lower.bytes)
    seconds = lower.seconds ** (1 - share) * upper.seconds**share
    return seconds, max(lower.spread_percent, upper.spread_percent)
