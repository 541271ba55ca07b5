"""What one GPU says of itself at one moment, in one form for both vendors. Standard library only.

`train/machine/nvidia.py`, `train/machine/amd.py` and `train/machine/rocm.py` fill it in, each from its vendor's tool.
What a tool does not say is None and has its reason in `reasons`; nothing is taken from a table of devices.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

TOOL_TIMEOUT_SECONDS = 60.0
"""A driver in trouble can leave its tool hanging."""
BYTES_PER_GB, MIB = 1e9, 1 << 20
_NUMBER = re.compile(r"\(?\s*(-?\d+(?:\.\d+)?)\s*[^\d\s]*\)?")


class GpuToolError(RuntimeError):
    """A vendor's tool that is there and does not answer; the message says what it said."""


@dataclass(frozen=True)
class GpuState:
    """One GPU, or one die of a board with two. Memory in GB (1e9 bytes), power in W, clocks in MHz, heat in C."""

    vendor: str
    """`nvd` or `amd`."""
    index: int
    """As the tool counts them."""
    name: str | None = None
    identifier: str | None = None
    """UUID (NVIDIA) or PCI address (AMD)."""
    driver_version: str | None = None
    memory_total_gb: float | None = None
    memory_used_gb: float | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    default_power_cap_watts: float | None = None
    max_power_cap_watts: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    max_memory_clock_mhz: float | None = None
    clock_limit_mhz: float | None = None
    """What an operator has limited the clock of the compute units to; equal to `default_clock_limit_mhz` where not."""
    default_clock_limit_mhz: float | None = None
    temperature_celsius: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Why the clocks are lower than they could be, just now."""
    throttle_counters: Mapping[str, float] | None = None
    """By reason: how much there was of it since the driver was loaded; see `throttled_percent`."""
    performance_level: str | None = None
    """AMD: `auto` unless somebody has set it."""
    persistence: str | None = None
    compute_mode: str | None = None
    ecc: str | None = None
    partition: str | None = None
    """`Disabled` or `Enabled` (MIG), `SPX/NPS1` and the like (AMD)."""
    reasons: Mapping[str, str] = field(default_factory=dict)

    def why(self, name: str) -> str:
        """Return the reason why a field is None."""
        return self.reasons.get(name, "the tool does not say")


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU; `gpu` is None where the tool does not say which one."""

    process_id: int
    gpu: int | None
    name: str
    memory_gb: float | None


@dataclass(frozen=True)
class GpuReading:
    """What a vendor's tool says of its GPUs and of the processes on them."""

    tool: str
    gpus: tuple[GpuState, ...]
    processes: tuple[GpuProcess, ...] | None = ()
    why_no_processes: str = ""
    """Where `processes` is None."""


FIELDS = tuple(one.name for one in fields(GpuState) if one.name not in ("vendor", "index", "reasons"))


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a vendor's tool, whatever its exit code; raise GpuToolError where it cannot be run or does not end."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GpuToolError(
            f"{command[0]} did not answer in {TOOL_TIMEOUT_SECONDS:.0f} s; look at the driver"
        ) from error
    except OSError as error:
        raise GpuToolError(f"{command[0]} cannot be run: {error}") from error


def output_of(*command: str) -> str:
    """Return what a tool prints; raise GpuToolError, with its last words, where it ends with an error."""
    done = run_tool(*command)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise GpuToolError(f"{' '.join(command)}: ended with exit code {done.returncode} and said: {said}")
    return done.stdout


def number(value: Any) -> float | None:
    """Return the number in what a tool gives: 12, "12.0", "12 W", "(2105Mhz)" or {"value": 12, "unit": "W"}.

    None for everything else: "N/A", "[Not Supported]", a list, a truth value.
    """
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1]) if match else None


def text(value: Any) -> str | None:
    """Return a text that says something; None for "", "N/A", "[N/A]" and what is no text."""
    if not isinstance(value, str) or value.strip().strip("[]").casefold() in ("", "n/a", "none", "unknown"):
        return None
    return value.strip()


def throttled_percent(before: GpuState, after: GpuState, seconds: float) -> dict[str, float] | None:
    """Return by reason the share of the `seconds` between two readings in which it held, in percent of that time.

    NVIDIA counts microseconds. AMD counts samples, and all samples as `accumulation_counter`. None where a reading has
    no counters, or where they went backwards because the driver was loaded anew.
    """
    first, last = before.throttle_counters, after.throttle_counters
    if first is None or last is None or seconds <= 0:
        return None
    grown = {name: last[name] - first[name] for name in last if name in first}
    if min(grown.values(), default=0.0) < 0:
        return None
    whole = grown.pop("accumulation_counter") if "accumulation_counter" in grown else seconds * 1e6
    return {name: 100 * value / whole for name, value in grown.items()} if whole > 0 else None
