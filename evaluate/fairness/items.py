"""One line of a certificate with its four possible states, and the builder of a line from the values of both sides."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
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
        reason = self.note or f"{self.name} differs" if self.state != UNKNOWN else f"{self.name} is unknown"
        return f"{reason}: {self.a} against {self.b}"


def values(sides: Sides, section: str, key: str) -> list[list[Any]]:
    """Return the value of a key in each run of both sides."""
    return [[one[section].get(key) for one in side] for side in sides]


def compared(name: str, of_runs: Values, if_different: str, note: str = "") -> Item:
    """Return the item for the values of all runs of both sides; the runs of one side must agree too.

    It is unknown if a value is None, and has the note if the state is `if_different`.
    """
    sides = [list(dict.fromkeys(json.dumps(as_number(one), sort_keys=True) for one in side)) for side in of_runs]
    a, b = (" or ".join(shown(json.loads(value)) for value in side) for side in sides)
    if "null" in sides[0] + sides[1]:
        return Item(name, UNKNOWN, a, b)
    is_same = sides[0] == sides[1] and len(sides[0]) == 1
    return Item(name, SAME, a, b) if is_same else Item(name, if_different, a, b, note)


def unless_all(absent: Any, name: str, of_runs: Values, if_different: str) -> Iterator[Item]:
    """Yield the item of `compared`; none if every run of both sides has the value `absent`."""
    if any(value != absent for side in of_runs for value in side):
        yield compared(name, of_runs, if_different)


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
        parts = [f"{key} {shown(value[key])}" for key in sorted(value) if not isinstance(value[key], bool)]
        on, off = ([key for key in sorted(value) if value[key] is state] for state in (True, False))
        parts += [f"{word}: {', '.join(keys)}" for word, keys in (("on", on), ("off", off)) if keys]
        return "; ".join(parts) or "none"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] if len(text) == 64 and " " not in text else text


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
