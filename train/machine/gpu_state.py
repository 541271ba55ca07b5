"""State of one GPU at one moment, in one form for both vendors. Standard library only.

`nvidia_smi.py` and `amd_smi.py` fill it in, each from its vendor's tools. A value that a tool does not
report is None, with the reason in `reasons`; no value comes from a table of devices.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOOL_TIMEOUT_SECONDS = 60.0
"""The tool of a faulty driver can hang."""
BYTES_PER_GB, MIB = 1e9, 1 << 20
_NUMBER = re.compile(r"\(?\s*(-?\d+(?:\.\d+)?)\s*[^\d\s]*\)?")


class GpuToolError(RuntimeError):
    """A vendor's tool that is installed and does not answer; the message contains its output."""


@dataclass(frozen=True)
class GpuState:
    """One GPU, or one die of a board with two. Memory in GB (1e9 bytes), power in W, clocks in MHz, heat in C."""

    vendor: str
    """`nvd` or `amd`."""
    index: int
    """Number of the GPU in the tool."""
    name: str | None = None
    identifier: str | None = None
    """UUID (NVIDIA) or PCI address (AMD)."""
    driver_version: str | None = None
    memory_total_gb: float | None = None
    memory_used_gb: float | None = None
    memory_reserved_gb: float | None = None
    """Part of the total that driver and firmware keep for themselves."""
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
    """Clock limit of the compute units that an operator set; equal to `default_clock_limit_mhz` if none is set."""
    default_clock_limit_mhz: float | None = None
    temperature_celsius: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Current reasons for reduced clocks."""
    throttle_counters: Mapping[str, float] | None = None
    """Amount of throttling by reason since the driver was loaded; see `throttled_percent`."""
    performance_level: str | None = None
    """AMD: `auto` unless an operator changed it."""
    persistence: str | None = None
    compute_mode: str | None = None
    ecc: str | None = None
    partition: str | None = None
    """`Disabled` or `Enabled` (MIG), `SPX/NPS1` and the like (AMD)."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a field is None, by its name."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a GPU; `gpu` is None if the tool does not report which one."""

    process_id: int
    gpu: int | None
    name: str
    memory_gb: float | None


@dataclass(frozen=True)
class GpuReading:
    """GPUs and the processes on them, as a vendor's tool reports them."""

    tool: str
    gpus: tuple[GpuState, ...]
    processes: tuple[GpuProcess, ...] | None = ()
    why_no_processes: str = ""
    """Reason, if `processes` is None."""


def sysroot() -> Path:
    """Return the parent of /proc, /sys and /dev: TPRIMAT_SYSROOT (of tests), or the real root."""
    return Path(os.environ.get("TPRIMAT_SYSROOT") or "/")


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a vendor's tool, whatever its exit code; raise GpuToolError if it cannot be run or does not end."""
    try:
        # names of processes may hold any bytes
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GpuToolError(
            f"{command[0]} did not answer in {TOOL_TIMEOUT_SECONDS:.0f} s; look at the driver"
        ) from error
    except FileNotFoundError as error:
        raise GpuToolError(f"{command[0]} is not installed") from error
    except OSError as error:
        raise GpuToolError(f"{command[0]} cannot be run: {error}") from error


def output_of(*command: str) -> str:
    """Return the output of a tool; raise GpuToolError with its last line if it ends with an error."""
    done = run_tool(*command)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise GpuToolError(f"{' '.join(command)}: ended with exit code {done.returncode} and said: {said}")
    return done.stdout


def number(value: Any) -> float | None:
    """Return the number in a value of a tool: 12, "12.0", "12 W", "(2105Mhz)" or {"value": 12, "unit": "W"}.

    None for everything else: "N/A", "[Not Supported]", a list, a truth value, NaN.
    """
    if isinstance(value, Mapping):
        value = value.get("value")
    # True is an int
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1]) if match else None


def gigabytes(value: Any, unit_bytes: int = 1) -> float | None:
    """Return the number in a value of a tool, which counts units of `unit_bytes`, in GB; None as `number` does."""
    size = number(value)
    return None if size is None else size * unit_bytes / BYTES_PER_GB


def text(value: Any) -> str | None:
    """Return a non-empty string; None for "", "N/A", "[N/A]" and everything that is not a string."""
    if not isinstance(value, str) or value.strip().strip("[]").casefold() in ("", "n/a", "none", "unknown"):
        return None
    return value.strip()


def largest(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest share of each throttle reason over the GPUs, in percent."""
    most: dict[str, float] = {}
    for of_gpu in shares:
        for reason, share in of_gpu.items():
            most[reason] = max(round(share, 3), most.get(reason, 0.0))
    return dict(sorted(most.items()))


def throttled_percent(before: GpuState, after: GpuState, seconds: float) -> dict[str, float] | None:
    """Return the share of the `seconds` between two readings in which each throttle reason was active, in percent.

    NVIDIA counts microseconds. AMD counts samples, and all samples as `accumulation_counter`. None if a reading has no
    counters, or if they decreased because the driver was reloaded.
    """
    first, last = before.throttle_counters, after.throttle_counters
    if first is None or last is None or seconds <= 0:
        return None
    # a driver may report other counters after an update
    grown = {name: last[name] - first[name] for name in last if name in first}
    if min(grown.values(), default=0.0) < 0:
        return None
    whole = grown.pop("accumulation_counter") if "accumulation_counter" in grown else seconds * 1e6
    return {name: 100 * value / whole for name, value in grown.items()} if whole > 0 else None
