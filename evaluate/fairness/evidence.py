"""Certificate items beyond settings and losses: nodes, time in no step, wait for data, settings of other names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from evaluate.checks.clock import loop_seconds, timer_seconds
from evaluate.checks.other_settings import extra_settings
from evaluate.checks.recorded import machines
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item
from utils.results.schema import Result

NODES = "nodes"
OUTSIDE = "time outside the steps"
SHARE_OUTSIDE, SECONDS_BETWEEN = 0.03, 0.002
"""Share of the loop, and seconds a step, by which sides may differ: between two steps the recorder prints a line."""
WAITING, SHARE_WAITING = "waiting for data", 0.1
"""The second is the share of a step by which two sides may differ."""


def evidence(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield the items on nodes, hosts, the time outside the steps, the wait for data and settings of other names."""
    yield _nodes(a, b)
    hosts = [sorted({host for one in side for host in machines(one)}) for side in (a, b)]
    if any(hosts):
        texts = [", ".join(side) or NOT_KNOWN for side in hosts]
        yield Item("hosts", SAME if hosts[0] == hosts[1] else ALLOWED, texts[0], texts[1])
    yield _outside_steps(a, b)
    yield _waiting(a, b)
    yield from _other_settings(a, b)


def _nodes(a: Sequence[Result], b: Sequence[Result]) -> Item:
    """Return the item on the number of machines of a run: with the method `equal` it is a part of the work."""
    counts = [sorted({len(machines(one)) for one in side}) for side in (a, b)]
    texts = [" or ".join(str(count) if count else NOT_KNOWN for count in side) for side in counts]
    if 0 in (*counts[0], *counts[1]):
        return Item(NODES, UNKNOWN, texts[0], texts[1])
    if counts[0] == counts[1] and len(counts[0]) == 1:
        return Item(NODES, SAME, texts[0], texts[1])
    is_equal_method = a[0]["method"] == "equal"
    note = "the runs are spread over another number of machines"
    return Item(NODES, BLOCKING if is_equal_method else ALLOWED, texts[0], texts[1], note)


def _outside_steps(a: Sequence[Result], b: Sequence[Result]) -> Item:
    """Return the item on the share of the training loop that is in no step, by the second timer of each run."""
    (left, slack_a), (right, slack_b) = outside(a), outside(b)
    words = [NOT_KNOWN if share is None else f"{share:.1%} of the loop" for share in (left, right)]
    if left is None or right is None:
        return Item(OUTSIDE, UNKNOWN, words[0], words[1], "a run has no second timer")
    is_alike = abs(left - right) <= max(SHARE_OUTSIDE, slack_a, slack_b)
    note = "" if is_alike else "more of the training loop of one side is in no step"
    return Item(OUTSIDE, SAME if is_alike else BLOCKING, words[0], words[1], note)


def _waiting(a: Sequence[Result], b: Sequence[Result]) -> Item:
    """Return the item on the share of a step in which the GPUs wait for samples."""
    shares = [[one["performance_metrics"]["data_wait_fraction"] for one in side] for side in (a, b)]
    words = [NOT_KNOWN if None in side else f"{statistics.fmean(side):.1%} of a step" for side in shares]
    if NOT_KNOWN in words:
        return Item(WAITING, UNKNOWN, words[0], words[1])
    is_alike = abs(statistics.fmean(shares[0]) - statistics.fmean(shares[1])) <= SHARE_WAITING
    note = "" if is_alike else "one side waits for its data"
    return Item(WAITING, SAME if is_alike else BLOCKING, words[0], words[1], note)


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


def _other_settings(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item for each setting beyond the schema that is on in a run and may change the work.

    It blocks if it is about the work and both sides have it; a name that one framework alone has proves nothing.
    """
    found = [[extra_settings(one) for one in side] for side in (a, b)]
    for name in sorted({name for side in found for one in side for name in one}):
        values = [sorted({_text(one.get(name)) for one in side}) for side in found]
        texts = [" or ".join(side) for side in values]
        subjects = {one[name][0] for side in found for one in side if name in one}
        is_named = all(name in one["resolved_config"] for one in (*a, *b))
        other = BLOCKING if subjects <= {"dropout", "recompute"} or (is_named and "" not in subjects) else UNKNOWN
        state = SAME if values[0] == values[1] and len(values[0]) == 1 else other
        yield Item(f"setting {name}", state, texts[0], texts[1])


def _text(setting: tuple[str, Any] | None) -> str:
    return "off" if setting is None else str(setting[1])
