"""Certificate items on evidence beyond settings and losses: nodes, time outside the steps, settings of other names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from evaluate.checks.clock import ENOUGH_STEPS, seconds_outside_steps
from evaluate.checks.other_settings import extra_settings
from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, SAME, UNKNOWN, Item
from utils.results.schema import Result

NODES = "nodes"
FEWEST_SECONDS = 15.0
TIMES_THE_OTHER = 3.0
SHARE_OF_STEPS = 1.9
"""Step times of a third of the true ones leave twice their sum outside the steps."""


def evidence(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield the items on nodes, on hosts, on the time outside the steps and on settings of other names."""
    yield _nodes(a, b)
    hosts = [sorted({host for one in side for host in _hosts(one)}) for side in (a, b)]
    if any(hosts):
        texts = [", ".join(side) or NOT_KNOWN for side in hosts]
        yield Item("hosts", SAME if hosts[0] == hosts[1] else ALLOWED, texts[0], texts[1])
    yield from _outside_steps(a, b)
    yield from _other_settings(a, b)


def _nodes(a: Sequence[Result], b: Sequence[Result]) -> Item:
    """Return the item on the number of machines of a run: with the method `equal` it is a part of the work."""
    counts = [sorted({len(_hosts(one)) for one in side}) for side in (a, b)]
    texts = [" or ".join(str(count) if count else NOT_KNOWN for count in side) for side in counts]
    if 0 in (*counts[0], *counts[1]):
        return Item(NODES, UNKNOWN, texts[0], texts[1])
    if counts[0] == counts[1] and len(counts[0]) == 1:
        return Item(NODES, SAME, texts[0], texts[1])
    is_equal_method = a[0]["method"] == "equal"
    note = "the runs are spread over another number of machines"
    return Item(NODES, BLOCKING if is_equal_method else ALLOWED, texts[0], texts[1], note)


def _hosts(result: Result) -> list[str]:
    provenance = result["provenance"]
    return list(provenance.get("hosts") or ([provenance["host"]] if provenance["host"] else []))


def _outside_steps(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield a blocking item if most of one side's time is in no step, and nearly all of the other side's is."""
    sides = [[one for one in side if len(one["steps"]) >= ENOUGH_STEPS] for side in (a, b)]
    rests = [[rest for one in side if (rest := seconds_outside_steps(one)) is not None] for side in sides]
    if not all(rests) or [*map(len, rests)] != [len(a), len(b)]:
        return
    outside = [statistics.median(side) for side in rests]
    inside = [statistics.median(math.fsum(one["step_times"]) for one in side) for side in sides]
    for this, other in ((0, 1), (1, 0)):
        if outside[this] > max(FEWEST_SECONDS, TIMES_THE_OTHER * outside[other], SHARE_OF_STEPS * inside[this]):
            words = [
                f"{rest:,.0f} s beside {steps:,.0f} s of steps" for rest, steps in zip(outside, inside, strict=True)
            ]
            note = "most of the time of one side is in no step, so that its step times may be too short"
            yield Item("time outside the steps", BLOCKING, words[0], words[1], note)


def _other_settings(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item for each setting beyond the schema that is on in a run and changes the work."""
    found = [[extra_settings(one) for one in side] for side in (a, b)]
    for name in sorted({name for side in found for one in side for name in one}):
        values = [sorted({_text(one.get(name)) for one in side}) for side in found]
        texts = [" or ".join(side) for side in values]
        state = SAME if values[0] == values[1] and len(values[0]) == 1 else BLOCKING
        if state == BLOCKING and _is_precision(found, name) and not all(_has(side, name) for side in (a, b)):
            state = UNKNOWN  # the other framework reports its precision under a name of its own, or not at all
        yield Item(f"setting {name}", state, texts[0], texts[1])


def _is_precision(found: Sequence[Sequence[dict[str, tuple[str, Any]]]], name: str) -> bool:
    return any(one[name][0] == "precision" for side in found for one in side if name in one)


def _has(side: Sequence[Result], name: str) -> bool:
    return all(name in one["resolved_config"] for one in side)


def _text(setting: tuple[str, Any] | None) -> str:
    return "off" if setting is None else str(setting[1])
