"""One line of a certificate and its four possible states."""

from __future__ import annotations

from dataclasses import dataclass

SAME, ALLOWED, BLOCKING, UNKNOWN = "same", "differs, allowed", "differs, not comparable", "unknown"
NOT_KNOWN = "unknown"
"""Text shown in place of a value that a result does not have."""


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
