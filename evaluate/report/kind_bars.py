"""Stacked bars of the kinds of time: their content, and the look of each kind in pictures and pages.

A kind has a colour, a hatch and a letter, so that a bar is readable without colour. Needs no matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from utils.kinds import (
    ATTENTION,
    COMMUNICATION,
    HOST_COPY,
    IDLE,
    KINDS,
    MATMUL,
    MEMORY_BOUND,
    OPTIMIZER,
    UNATTRIBUTED,
)

LETTERS = dict(zip(KINDS, "MABOCHIU", strict=True))
# The palette of Okabe and Ito (2008), distinguishable with any common colour blindness; trace.css has the same.
COLOURS = {
    MATMUL: "#0072b2",
    ATTENTION: "#56b4e9",
    MEMORY_BOUND: "#009e73",
    OPTIMIZER: "#cc79a7",
    COMMUNICATION: "#d55e00",
    HOST_COPY: "#f0e442",
    IDLE: "#e6e9ee",
    UNATTRIBUTED: "#7f7f7f",
}
HATCHES = {
    MATMUL: "",
    ATTENTION: "///",
    MEMORY_BOUND: "...",
    OPTIMIZER: "xxx",
    COMMUNICATION: "\\\\\\",
    HOST_COPY: "|||",
    IDLE: "",
    UNATTRIBUTED: "ooo",
}
DARK = frozenset({MATMUL, UNATTRIBUTED})
"""Kinds whose colour needs a white letter."""


@dataclass(frozen=True)
class Bar:
    """One stacked bar of a picture; times in seconds of a step."""

    name: str
    kinds: Mapping[str, float] | None
    """Seconds by kind, drawn one after the other; None: one hollow part of `seconds`."""
    seconds: float
    """Place of the mark on the bar: the value whose uncertainty the whisker shows."""
    low: float | None = None
    """Lower end of the whisker; None for a bar without one."""
    high: float | None = None
    is_thin: bool = False
    """True for a floor, which is drawn thinner than a measured step."""
    has_mark: bool = False
    """True if `seconds` is marked on the bar, also without a whisker."""

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """The parts with any time, from left to right: kind, start and seconds; none for a hollow bar."""
        found, start = [], 0.0
        for kind in KINDS if self.kinds is not None else ():
            seconds = max(0.0, (self.kinds or {}).get(kind, 0.0))
            if seconds > 0:
                found.append((kind, start, seconds))
            start += seconds
        return found

    @property
    def length(self) -> float:
        """End of the parts, or of the hollow bar."""
        return sum(seconds for _, _, seconds in self.parts) if self.kinds is not None else self.seconds

    @property
    def reach(self) -> float:
        """End of everything that is drawn of the bar."""
        return max(self.length, self.seconds if self.has_mark else 0.0, self.high or 0.0)
