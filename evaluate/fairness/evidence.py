"""Certificate items beyond settings and losses: nodes, time in no step, wait for data, settings of other names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from evaluate.checks.clock import loop_seconds, timer_seconds
from evaluate.checks.other_settings import extra_settings
from evaluate.checks.recorded import machines
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item, Sides, compared, fits, values
from utils.results.schema import Result

NODES = "nodes"
OUTSIDE = "time outside the steps"
SHARE_OUTSIDE, SECONDS_BETWEEN = 0.03, 0.002
"""Share of the loop, and seconds a step, by which sides may differ: between two steps the recorder prints a line."""
WAITING, SHARE_WAITING = "waiting for data", 0.1
"""The second is the share of a step by which two sides may differ."""


def evidence(sides: Sides) -> Iterator[Item]:
    """Yield the items on nodes, hosts, the time outside the steps, the wait for data and settings of other names.

    With the method `equal` the number of machines of a run is a part of the work.
    """
    counts = [[len(machines(one)) or None for one in side] for side in sides]
    note = "the runs are spread over another number of machines"
    yield compared(NODES, counts, BLOCKING if sides[0][0]["method"] == "equal" else ALLOWED, note)
    a, b = (", ".join(sorted({host for one in side for host in machines(one)})) for side in sides)
    if a or b:
        yield Item("hosts", SAME if a == b else ALLOWED, a or NOT_KNOWN, b or NOT_KNOWN)
    (outside_a, slack_a), (outside_b, slack_b) = map(outside, sides)
    if outside_a is None or outside_b is None:
        a, b = (NOT_KNOWN if share is None else f"{share:.1%} of the loop" for share in (outside_a, outside_b))
        yield Item(OUTSIDE, UNKNOWN, a, b, "a run has no second timer")
    else:
        is_alike = abs(outside_a - outside_b) <= max(SHARE_OUTSIDE, slack_a, slack_b)
        a, b = (f"{share:.1%} of the loop" for share in (outside_a, outside_b))
        yield fits(OUTSIDE, is_alike, a, b, "more of the training loop of one side is in no step")
    waits = values(sides, "performance_metrics", "data_wait_fraction")
    means = [None if None in side else statistics.fmean(side) for side in waits]
    a, b = (NOT_KNOWN if mean is None else f"{mean:.1%} of a step" for mean in means)
    if means[0] is None or means[1] is None:
        yield Item(WAITING, UNKNOWN, a, b)
    else:
        yield fits(WAITING, abs(means[0] - means[1]) <= SHARE_WAITING, a, b, "one side waits for its data")
    yield from _other_settings(sides)


def outside(side: Sequence[Result]) -> tuple[float | None, float]:
    """Return the share of a side's training loops that is in no step, and the share up to which it means nothing; None
    if a run has no second timer."""
    loops = [loop_seconds(one) for one in side]
    if None in loops:
        return None, 0.0
    total = math.fsum(filter(None, loops))
    steps = math.fsum(math.fsum(one["step_times"]) for one in side)
    slack = math.fsum(timer_seconds(one) + SECONDS_BETWEEN * len(one["steps"]) for one in side)
    return 1 - steps / total, slack / total


def _other_settings(sides: Sides) -> Iterator[Item]:
    """Yield an item for each setting beyond the schema that is on in a run and may change the work.

    It blocks if it is about the work and both sides have it; a name that one framework alone has proves nothing.
    """
    found = [[extra_settings(one) for one in side] for side in sides]
    for name in sorted({name for side in found for one in side for name in one}):
        texts = [[str(one[name][1]) if name in one else "off" for one in side] for side in found]
        subjects = {one[name][0] for side in found for one in side if name in one}
        is_named = all(name in one["resolved_config"] for side in sides for one in side)
        is_work = subjects <= {"dropout", "recompute"} or (is_named and "" not in subjects)
        yield compared(f"setting {name}", texts, BLOCKING if is_work else UNKNOWN)
