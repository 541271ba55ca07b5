"""One line of a certificate with its four possible states, and the builder of a line from the values of both sides."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluate.checks.clock import loop_seconds, timer_seconds
from evaluate.checks.consistency import extra_settings
from evaluate.checks.recorded import machines
from utils.results.schema import Result

SAME, ALLOWED, BLOCKING, UNKNOWN = "same", "differs, allowed", "differs, not comparable", "unknown"
NOT_KNOWN = "unknown"
"""Text shown in place of a value that a result does not have."""
Sides = Sequence[Sequence[Result]]
"""The runs of a, then those of b."""
Values = Sequence[Sequence[Any]]
"""A value of each run of a, then of b; None if it is unknown."""


@dataclass(frozen=True)
class Item:
    """One line of a certificate: a property, its state, and the values of both sides."""

    name: str
    state: str
    a: str
    b: str
    note: str = ""

    @property
    def is_unproven(self) -> bool:
        """True if a value that a result should have is missing on a side, so that the sides may differ; also for an
        unknown item with a note, whatever it shows."""
        return self.state == UNKNOWN and (self.a != self.b or self.a == NOT_KNOWN or bool(self.note))

    @property
    def sentence(self) -> str:
        """The item as a reason: the property that differs or is unknown, and the two values."""
        reason = self.note or f"{self.name} differs"
        if self.state == UNKNOWN:
            reason = f"{self.name} is unknown"
        return f"{reason}: {self.a} against {self.b}"


def of_runs(sides: Values, read: Callable[[Any], Any]) -> Values:
    """Return what a function makes of each run of both sides, or of each value of their runs."""
    return [[read(run) for run in side] for side in sides]


def values(sides: Sides, section: str, key: str) -> Values:
    """Return the value of a key in each run of both sides."""
    return of_runs(sides, lambda run: run[section].get(key))


def both(found: Values) -> list[Any]:
    """Return the values of all runs of both sides."""
    return [*found[0], *found[1]]


def compared(name: str, found: Values, if_different: str, note: str = "") -> Item:
    """Return the item that compares the values of all runs.

    The state is unknown if a value is None, and the same if all values are equal. Otherwise it is `if_different`, also
    if only the runs of one side differ; the item then has the note.
    """
    a, b = (_texts(side) for side in found)
    shown_a, shown_b = (" or ".join(shown(json.loads(text)) for text in side) for side in (a, b))
    if "null" in a + b:
        return Item(name, UNKNOWN, shown_a, shown_b)
    # a side whose own runs differ is not one system
    if a == b and len(a) == 1:
        return Item(name, SAME, shown_a, shown_b)
    return Item(name, if_different, shown_a, shown_b, note)


def _texts(side: Sequence[Any]) -> list[str]:
    """Return the distinct values of a side as JSON, which tells true from 1 and has the keys of a map in one order."""
    return list(dict.fromkeys(json.dumps(as_number(value), sort_keys=True) for value in side))


def unless_all(absent: Any, name: str, found: Values, if_different: str) -> Iterator[Item]:
    """Yield the item of `compared`; none if every run of both sides has the value `absent`."""
    if any(value != absent for value in both(found)):
        yield compared(name, found, if_different)


def fits(name: str, is_fine: bool, a: str, b: str, note: str) -> Item:
    """Return the item of a condition that both sides satisfy, or that blocks with the note."""
    return Item(name, SAME, a, b) if is_fine else Item(name, BLOCKING, a, b, note)


def shown(value: Any) -> str:
    """Return a value of JSON in words: hashes by their first characters, of a map the keys that are on and off."""
    if value is None:
        return NOT_KNOWN
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return _shown_map(value)
    text = value if isinstance(value, str) else json.dumps(value)
    # a reader compares hashes by their beginning
    is_hash = len(text) == 64 and " " not in text
    return text[:12] if is_hash else text


def _shown_map(found: Mapping[str, Any]) -> str:
    parts, on, off = [], [], []
    for key, value in sorted(found.items()):
        if value is True:
            on.append(key)
        elif value is False:
            off.append(key)
        else:
            parts.append(f"{key} {shown(value)}")
    if on:
        parts.append(f"on: {', '.join(on)}")
    if off:
        parts.append(f"off: {', '.join(off)}")
    return "; ".join(parts) or "none"


def as_number(value: Any) -> Any:
    """Return a whole number as int: 1000000 and 1000000.0 are equal, and a framework may record either."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Certificate items beyond settings and losses: nodes, time in no step, wait for data, settings of other names.

OUTSIDE = "time outside the steps"
SHARE_OUTSIDE, SECONDS_BETWEEN = 0.03, 0.002
"""Share of the loop, and seconds a step, by which sides may differ: between two steps the recorder prints a line."""
SHARE_WAITING = 0.1
"""Share of a step by which two sides may differ."""


def evidence(sides: Sides) -> Iterator[Item]:
    """Yield the items on nodes, hosts, the time outside the steps, the wait for data and settings of other names.

    With the method `equal` the number of machines of a run is a part of the work.
    """
    hosts = of_runs(sides, machines)
    counts = of_runs(hosts, lambda names: len(names) or None)
    # exchange over a network is slower, so that the number of machines is a part of the layout
    state = BLOCKING if sides[0][0]["method"] == "equal" else ALLOWED
    yield compared("nodes", counts, state, "the runs are spread over another number of machines")
    a, b = (", ".join(sorted(set().union(*side))) for side in hosts)
    if a or b:
        yield Item("hosts", SAME if a == b else ALLOWED, a or NOT_KNOWN, b or NOT_KNOWN)
    share_a, slack_a = outside(sides[0])
    share_b, slack_b = outside(sides[1])
    most = max(SHARE_OUTSIDE, slack_a, slack_b)
    item = _alike(OUTSIDE, share_a, share_b, "of the loop", most, "more of the training loop of one side is in no step")
    # with a note an unknown item stays unproven, even if the shown values of both sides are equal
    yield replace(item, note="a run has no second timer") if item.state == UNKNOWN else item
    waits = values(sides, "performance_metrics", "data_wait_fraction")
    wait_a, wait_b = (None if None in side else statistics.fmean(side) for side in waits)
    yield _alike("waiting for data", wait_a, wait_b, "of a step", SHARE_WAITING, "one side waits for its data")
    yield from _other_settings(sides)


def outside(side: Sequence[Result]) -> tuple[float | None, float]:
    """Return the share of a side's training loops that is in no step, and the share that timers alone explain.

    The first is None if a run has no second timer.
    """
    loops = [loop_seconds(run) for run in side]
    if None in loops:
        return None, 0.0
    total = math.fsum(filter(None, loops))
    steps = math.fsum(math.fsum(run["step_times"]) for run in side)
    # what the two timers may differ by without anything in between
    slack = math.fsum(timer_seconds(run) + SECONDS_BETWEEN * len(run["steps"]) for run in side)
    return 1 - steps / total, slack / total


def _alike(name: str, a: float | None, b: float | None, unit: str, most_apart: float, note: str) -> Item:
    """Return the item on a share of the time of each side, which blocks with the note if they are further apart."""
    shown_a, shown_b = (NOT_KNOWN if share is None else f"{share:.1%} {unit}" for share in (a, b))
    if a is None or b is None:
        return Item(name, UNKNOWN, shown_a, shown_b)
    return fits(name, abs(a - b) <= most_apart, shown_a, shown_b, note)


def _other_settings(sides: Sides) -> Iterator[Item]:
    """Yield an item for each setting beyond the schema that is on in a run and may change the work.

    It blocks if it is about the work and both sides have it; a name that one framework alone has proves nothing.
    """
    found = of_runs(sides, extra_settings)
    for name in sorted(set().union(*both(found))):
        subjects, is_named = set(), True
        for run, extra in zip(both(sides), both(found), strict=True):
            if name in extra:
                subjects.add(extra[name][0])
            # where both frameworks know the name, its absence means off
            is_named = is_named and name in run["resolved_config"]
        is_work = subjects <= {"dropout", "recompute"} or (is_named and "" not in subjects)
        yield compared(f"setting {name}", _texts_of(found, name), BLOCKING if is_work else UNKNOWN)


def _texts_of(found: Values, name: str) -> Values:
    return of_runs(found, lambda extra: str(extra[name][1]) if name in extra else "off")
