"""The times at which steps ended, on a clock that other processes of the machine share. Standard library only.

`time.perf_counter` is CLOCK_MONOTONIC on Linux, one clock for all processes since a boot. On another machine the same
moment is found through the time of day, which is exact to the milliseconds by which the machines' clocks differ.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KEY = "step_clock"
"""Key under which a trainer hands its times to the launcher, in `energy_metrics`; the launcher removes it."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def clock() -> dict[str, Any]:
    """Return the identity of this machine's clock, and the time of day (Unix seconds) at its 0."""
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return {"boot": boot, "unix_at_zero": time.time() - time.perf_counter()}


def of_steps(ends: Sequence[float]) -> dict[str, Any]:
    """Return the clock with the `ends` of the recorded steps, seconds of `time.perf_counter`."""
    return {**clock(), "ends": list(ends)}


def shift_seconds(here: Mapping[str, Any], there: Mapping[str, Any]) -> float:
    """Return what must be added to a time of the clock `here` to get that of the clock `there`."""
    if here["boot"] and here["boot"] == there["boot"]:
        return 0.0
    return float(here["unix_at_zero"] - there["unix_at_zero"])
