"""One line of a certificate with its four possible states, and the builder of a line from the values of both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
