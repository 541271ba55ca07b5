"""Certificate items beyond settings and losses: nodes, time in no step, wait for data, settings of other names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from evaluate.checks.clock import loop_seconds, timer_seconds
from evaluate.checks.other_settings import extra_settings
from evaluate.checks.recorded import machines
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item, Sides, compared, fits, values
from utils.results.schema import Result

OUTSIDE = "time outside the steps"
SHARE_OUTSIDE, SECONDS_BETWEEN = 0.03, 0.002
"""Share of the loop, and seconds a step, by which sides may differ: between two steps the recorder prints a line."""
SHARE_WAITING = 0.1
"""Share of a step by which two sides may differ."""


def evidence(sides: Sides) -> Iterator[Item]:
    """Yield the items on nodes, hosts, the time outside the steps, the wait for data and settings of other names.

    With the method `equal` the number of machines of a run is a part of the work.
    """
    counts = [[len(machines(one)) or None for one in side] for side in sides]
    state = BLOCKING if sides[0][0]["method"] == "equal" else ALLOWED
    yield compared("nodes", counts, state, "the runs are spread over another number of machines")
    a, b = (", ".join(sorted({host for one in side for host in machines(one)})) for side in sides)
    if a or b:
        yield Item("hosts", SAME if a == b else ALLOWED, a or NOT_KNOWN, b or NOT_KNOWN)
    (outside_a, slack_a), (outside_b, slack_b) = map(outside, sides)
    item = _alike(
        *(OUTSIDE, (outside_a, outside_b), "of the loop", max(SHARE_OUTSIDE, slack_a, slack_b)),
        note="more of the training loop of one side is in no step",
    )
    yield replace(item, note="a run has no second timer") if item.state == UNKNOWN else item
    waits = values(sides, "performance_metrics", "data_wait_fraction")
    means = [None if None in side else statistics.fmean(side) for side in waits]
    yield _alike("waiting for data", means, "of a step", SHARE_WAITING, "one side waits for its data")
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


def _alike(name: str, shares: Sequence[float | None], unit: str, most_apart: float, note: str) -> Item:
    """Return the item on a share of the time of each side, which blocks with the note if they are further apart."""
    a, b = shares
    shown = [NOT_KNOWN if share is None else f"{share:.1%} {unit}" for share in shares]
    if a is None or b is None:
        return Item(name, UNKNOWN, shown[0], shown[1])
    return fits(name, abs(a - b) <= most_apart, shown[0], shown[1], note)


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
