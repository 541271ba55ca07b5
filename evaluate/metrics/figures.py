"""A number that says what it is: value, unit, how it was worked out; or that it is unknown, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One metric. `value` is None where it is unknown; then `how` is the reason, else the formula and its sources."""

    value: float | None
    unit: str
    how: str

    def map(self, function: Callable[[float], float], unit: str, how: str) -> Figure:
        """Return what `function` makes of the value; an unknown stays unknown for its own reason."""
        return unknown(unit, self.how) if self.value is None else Figure(function(self.value), unit, how)


def unknown(unit: str, reason: str) -> Figure:
    """Return a figure that is not known."""
    return Figure(None, unit, reason)


def quotient(above: Figure, below: Figure, unit: str, how: str, factor: float = 1.0) -> Figure:
    """Return `factor` times `above` over `below`; unknown where one of them is, or where `below` is 0."""
    for figure in (above, below):
        if figure.value is None:
            return unknown(unit, figure.how)
    if above.value is None or not below.value:
        return unknown(unit, f"{below.how}: 0 {below.unit}")
    return Figure(factor * above.value / below.value, unit, how)
