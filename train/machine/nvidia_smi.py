"""Reader of NVIDIA GPUs through `nvidia-smi`. Standard library only.

Formats: `nvidia-smi --help-query-gpu` of drivers 470 to 595. A driver refuses a query that contains an unknown field
(exit code 2, `Field "x" is not a valid field to query.` on stdout); the query is then repeated without that field. A
value that a board does not have is `[N/A]`, `[Not Supported]`, `[Unknown Error]` or
`[Requested functionality has been deprecated]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from train.machine.gpu_state import (
    MIB,
    GpuProcess,
    GpuState,
    GpuToolError,
    gigabytes,
    number,
    output_of,
    run_tool,
    text,
)

TOOL = "nvidia-smi"
FORMAT = "--format=csv,noheader,nounits"
NUMBERS = {
    "utilization.gpu": "utilization_percent",
    "power.draw": "power_watts",
    "enforced.power.limit": "power_cap_watts",  # the lowest limit in force, including one set from outside
    "power.default_limit": "default_power_cap_watts",
    "power.max_limit": "max_power_cap_watts",
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "clocks.max.mem": "max_memory_clock_mhz",
    "clocks.applications.graphics": "clock_limit_mhz",
    "clocks.default_applications.graphics": "default_clock_limit_mhz",
    "temperature.gpu": "temperature_celsius",
}
TEXTS = {
    "uuid": "identifier",
    "name": "name",
    "driver_version": "driver_version",
    "persistence_mode": "persistence",
    "compute_mode": "compute_mode",
    "ecc.mode.current": "ecc",
    "mig.mode.current": "partition",
}
MEMORY = {
    "memory.total": "memory_total_gb",
    "memory.used": "memory_used_gb",
    "memory.reserved": "memory_reserved_gb",
}
"""In MiB."""
ACTIVE = "clocks_event_reasons.active"
COUNTER = "clocks_event_reasons_counters."
SLOWDOWNS = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
COUNTERS = tuple(COUNTER + name for name in SLOWDOWNS)
"""In microseconds since the driver was loaded."""
OLDER_NAMES = {ACTIVE: "clocks_throttle_reasons.active", "enforced.power.limit": "power.limit"}
"""Names of these fields in older drivers: before 535, and before the enforced limit was shown."""
THROTTLE_BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Source: NVML API reference R550, NvmlClocksEventReasons."""
_INVALID_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')


def states() -> tuple[GpuState, ...]:
    """Return all NVIDIA GPUs that the driver shows here; raise GpuToolError if nvidia-smi does not answer."""
    asked, lines = _query(["index", *TEXTS, *MEMORY, *NUMBERS, ACTIVE, *COUNTERS, *OLDER_NAMES.values()])
    return tuple(_state(asked, line) for line in lines)


def throttle_names(mask: str) -> tuple[str, ...] | None:
    """Return the names of the bits of e.g. `0x0000000000000004`; unnamed bits are returned as one number."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    names = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
    rest = bits & ~sum(THROTTLE_BITS)
    if rest:
        names.append(hex(rest))
    return tuple(names)


def _query(wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the fields of `wanted` that this driver knows, and one line per GPU."""
    unknown: set[str] = set()
    while True:
        asked = [field for field in wanted if field not in unknown]
        done = run_tool(TOOL, "--query-gpu=" + ",".join(asked), FORMAT)
        refused = set(_INVALID_FIELD.findall(done.stdout + done.stderr)) & set(asked)
        # some drivers refuse a field and exit with 0
        if done.returncode == 0 and not refused:
            return asked, [line for line in done.stdout.splitlines() if line.strip()]
        # a driver without a board answers with an error
        if "No devices were found" in done.stdout + done.stderr:
            return asked, []
        if not refused:
            said = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[-1]
            raise GpuToolError(f"{TOOL}: ended with exit code {done.returncode} and said: {said}")
        if COUNTERS[0] in refused:
            refused |= set(COUNTERS)  # a driver without the first has none of them, and each refusal costs a call
        unknown |= refused


def _state(asked: Sequence[str], line: str) -> GpuState:
    # no value of these fields has a comma
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(asked):
        raise GpuToolError(f"{TOOL}: got {line!r}, wanted {len(asked)} values: {', '.join(asked)}")
    row = dict(zip(asked, cells, strict=True))
    for field, older in OLDER_NAMES.items():
        if older in row:
            row.setdefault(field, row[older])
    values: dict[str, Any] = {}
    reasons = {"performance_level": "NVIDIA has none"}

    def note(field: str, name: str, value: Any) -> None:
        values[name] = value
        if value is None:
            said = f"{TOOL} says {row[field]!r}" if field in row else f"this driver's {TOOL} does not know {field}"
            reasons[name] = said

    for field, name in NUMBERS.items():
        note(field, name, number(row.get(field)))
    for field, name in TEXTS.items():
        note(field, name, text(row.get(field)))
    for field, name in MEMORY.items():
        note(field, name, gigabytes(row.get(field), MIB))
    note(ACTIVE, "throttle_reasons", throttle_names(row.get(ACTIVE, "")))
    counters = {}
    for field in COUNTERS:
        count = number(row.get(field))
        if count is not None:
            counters[field.removeprefix(COUNTER)] = count
    if not counters:
        reasons["throttle_counters"] = f"this driver's {TOOL} has no {COUNTER}*"
    index = number(row["index"])
    if index is None:
        raise GpuToolError(f"{TOOL}: got {line!r}, wanted a number of the GPU first")
    return GpuState("nvd", int(index), **values, throttle_counters=counters or None, reasons=reasons)


def processes(states: Sequence[GpuState]) -> Iterator[GpuProcess]:
    """Yield the processes with a compute context; raise GpuToolError if nvidia-smi does not answer.

    Only the last column, the name, may contain commas.
    """
    by_uuid = {gpu.identifier: gpu.index for gpu in states}
    lines = output_of(TOOL, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", FORMAT).splitlines()
    for line in lines:
        if not line.strip() or "No running processes found" in line:
            continue
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) != 4 or not cells[1].isdecimal():
            raise GpuToolError(f"{TOOL}: got {line!r}, wanted gpu_uuid, pid, used_memory, process_name")
        yield GpuProcess(int(cells[1]), by_uuid.get(cells[0]), cells[3], gigabytes(cells[2], MIB))
