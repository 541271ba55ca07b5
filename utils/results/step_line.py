"""The line that a trainer prints for each finished step, written and read in one place.

The launcher's watchdog and the matrix's view follow a job by these lines alone, so that whatever prints them - our own
recorder or, translated, a vendor's log - can be watched. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One finished optimizer step as its line tells it: rounded figures, for people and for the watchdog."""

    number: int
    """From 1."""
    total: int
    seconds: float
    average_seconds: float
    """Mean of the steps so far without the first."""
    loss: float
    """Nats per token; NaN where it is."""
    memory_gb: float
    """NaN where a vendor's log does not say it."""


_STEP = re.compile(
    r"\[\w+\] Step (?P<number>\d{1,12})/(?P<total>\d{1,12}) \| (?P<seconds>\d+\.\d+) s \| "
    r"avg (?P<average>\d+\.\d+) s \| loss (?P<loss>-?(?:\d+\.\d+|inf|nan)) \| (?P<memory>\d+\.\d+|nan) GB"
)


def format_step(
    title: str, number: int, total: int, seconds: float, average_seconds: float, loss: float, memory_gb: float
) -> str:
    """Return the line, with its newline, of one step (see Step); `title` (a word) says what it runs on.

    Takes numbers and no Step: making one costs a tenth of what the recorder may take at the boundary of a step.
    """
    return (
        f"[{title}] Step {number}/{total} | {seconds:.3f} s | avg {average_seconds:.3f} s | loss {loss:.4f} | "
        f"{memory_gb:.1f} GB\n"
    )


def parse_step(line: str) -> Step | None:
    """Return the step that a line of a trainer's output reports, or None where it reports none."""
    match = _STEP.match(line)
    if match is None:
        return None
    return Step(
        number=int(match["number"]),
        total=int(match["total"]),
        seconds=float(match["seconds"]),
        average_seconds=float(match["average"]),
        loss=float(match["loss"]),
        memory_gb=float(match["memory"]),
    )
