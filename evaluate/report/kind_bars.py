"""Stacked bars of the kinds of time: their content, and the letter of each kind, so that no bar needs its colour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from utils.kinds import KINDS

LETTERS = dict(zip(KINDS, "MABOCHIU", strict=True))


@dataclass(frozen=True)
class Bar:
    """One stacked bar of a picture."""

    name: str
    kinds: Mapping[str, float]
    """Seconds of a step by kind, drawn one after the other."""

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """The parts with any time, from left to right: kind, start and seconds."""
        found, start = [], 0.0
        for kind in KINDS:
            seconds = max(0.0, self.kinds.get(kind, 0.0))
            if seconds > 0:
                found.append((kind, start, seconds))
            start += seconds
        return found

    @property
    def length(self) -> float:
        """End of the parts."""
        return sum(seconds for _, _, seconds in self.parts)
