"""A number with its unit and formula, or an unknown with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One metric. `how` is its formula with sources; `value` is None if it is unknown, and `how` is then the reason."""

    value: float | None
    unit: str
    how: str

    def map(self, function: Callable[[float], float], unit: str, how: str) -> Figure:
        """Return the figure of `function(value)`; an unknown figure stays unknown for its own reason."""
        return unknown(unit, self.how) if self.value is None else Figure(function(self.value), unit, how)


def unknown(unit: str, reason: str) -> Figure:
    """Return an unknown figure with its reason."""
    return Figure(None, unit, reason)


def quotient(above: Figure, below: Figure, unit: str, how: str, factor: float = 1.0) -> Figure:
    """Return `factor` * `above` / `below`; unknown if one of them is unknown or `below` is 0."""
    for figure in (above, below):
        if figure.value is None:
            return unknown(unit, figure.how)
    if above.value is None or not below.value:
        return unknown(unit, f"{below.how}: 0 {below.unit}")
    return Figure(factor * above.value / below.value, unit, how)
