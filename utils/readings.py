"""The one door for facts that decide nothing about the work of a job: names, versions, counters, files of a profile.

They are read before the first step or after the last one, from libraries that change with each release. A measurement
is complete without them: its losses, steps and times are there. So a reader that fails leaves a reason, not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def attempt(read: Callable[[], Value]) -> tuple[Value | None, str]:
    """Return the value that `read` returns, with an empty reason; None with the reason where it raises."""
    try:
        return read(), ""
    except Exception as error:  # noqa: BLE001 - a library may raise anything; what only reports never ends what measured
        return None, reason_of(error)


def reason_of(error: BaseException) -> str:
    """Return type and message of an error in one line: `RuntimeError: cuDNN version incompatibility`."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"
