"""Reader of AMD GPUs through `amd-smi`. Standard library only.

Formats, all JSON: AMD SMI 24.5 to 24.7 (ROCm 6.1 to 6.3) prints a list of GPUs, 26 (ROCm 7)
`{"gpu_data": [...]}` for `static` and `metric` and still a list for `process`; the power cap is `limit.socket_power` up
to ROCm 7.1 and `limit.ppt0.socket_power_limit` from 7.2 on. Source: amdsmi_cli/amdsmi_commands.py of the tags
rocm-6.0.0 to rocm-6.2.2, amdsmi_cli/subcommands/static.py of rocm-systems, AMD SMI's changelog for ROCm 6.3 to 7.2.
Numbers are `{"value": 12, "unit": "W"}` or plain, and `"N/A"` where there is none. MB is 2**20 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from train.machine.gpu_state import (
    MIB,
    GpuProcess,
    GpuState,
    GpuToolError,
    gigabytes,
    number,
    output_of,
    sysroot,
    text,
)

Value = TypeVar("Value")

TOOL = "amd-smi"
Entry = Mapping[str, Any]
"""The JSON of one GPU from one command."""
SOURCES = {
    "name": (("static", "asic", "market_name"),),
    "identifier": (("static", "bus", "bdf"),),
    "driver_version": (("static", "driver", "version"), ("static", "driver", "driver_version")),
    "utilization_percent": (("metric", "usage", "gfx_activity"),),
    "power_watts": (("metric", "power", "socket_power"), ("metric", "power", "current_socket_power")),
    "power_cap_watts": (
        ("static", "limit", "ppt0", "socket_power_limit"),
        ("static", "limit", "socket_power"),
        ("static", "limit", "current_power"),
    ),
    "max_power_cap_watts": (("static", "limit", "ppt0", "max_power_limit"), ("static", "limit", "max_power")),
    "sm_clock_mhz": (("metric", "clock", "gfx_0", "clk"),),
    "memory_clock_mhz": (("metric", "clock", "mem_0", "clk"),),
    "max_sm_clock_mhz": (("metric", "clock", "gfx_0", "max_clk"),),
    "max_memory_clock_mhz": (("metric", "clock", "mem_0", "max_clk"),),
    "temperature_celsius": (("metric", "temperature", "hotspot"), ("metric", "temperature", "edge")),
    "performance_level": (("metric", "perf_level"),),
}
"""Possible places of each field in the JSON; the first with a value counts."""
TEXTS = ("name", "identifier", "driver_version", "performance_level")
MEMORY = {"memory_total_gb": "total_vram", "memory_used_gb": "used_vram"}
VIOLATIONS = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
"""`<name>_violation_status` ACTIVE or NOT ACTIVE, `<name>_accumulated` in samples (ROCm 6.3 on, MI300 on)."""
NOT_OF_AMD = {
    "persistence": "AMD's driver has no such mode",
    "compute_mode": "AMD's driver has no such mode",
    "clock_limit_mhz": "AMD's tool shows the highest clock only",
    "default_clock_limit_mhz": "AMD's tool shows the highest clock only",
    "memory_reserved_gb": "AMD's tool does not show it",
}


def states() -> tuple[GpuState, ...]:
    """Return all AMD GPUs that the driver shows here; raise GpuToolError if amd-smi does not answer."""
    static, metric = _gpus("static"), _gpus("metric")
    gpus = []
    for index in sorted(static):
        gpus.append(_state(index, {"static": static[index], "metric": metric.get(index, {})}))
    return tuple(gpus)


def _default_power_cap_watts(address: str | None) -> float | None:
    """Return the default power cap of the board at a PCI address; None if the kernel does not show it.

    No AMD tool prints it. Source: Linux, Documentation/gpu/amdgpu, hwmon: `power1_cap_default` in microwatts.
    """
    if address is None:
        return None
    files = sysroot().glob(f"sys/bus/pci/devices/{address.lower()}/hwmon/hwmon*/power1_cap_default")
    for file in sorted(files):
        cap = number(file.read_text())
        if cap:
            return cap / 1e6
    return None


def _gpus(command: str) -> dict[int, Entry]:
    printed = output_of(TOOL, command, "--json")
    try:
        content = json.loads(printed)
    except ValueError as error:
        raise GpuToolError(f"{TOOL} {command} --json: got {printed[:120]!r}, wanted JSON") from error
    listed = content
    if isinstance(content, dict) and "gpu_data" in content:
        listed = content["gpu_data"]
    elif isinstance(content, dict) and "gpu" in content:
        listed = [content]  # of a machine with one GPU
    entries: dict[int, Entry] = {}
    for entry in listed if isinstance(listed, list) else []:
        # entries without a number are CPUs of an APU machine
        if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
            entries[entry["gpu"]] = entry
    if not entries and listed != []:
        raise GpuToolError(f"{TOOL} {command} --json: got {str(content)[:120]!r}, wanted a list of GPUs")
    return entries


def _state(index: int, content: Mapping[str, Entry]) -> GpuState:
    values: dict[str, Any] = {}
    # the tool's JSON has moved between releases, so each field has several places
    for name, places in SOURCES.items():
        convert: Callable[[Any], Any] = text if name in TEXTS else number
        values[name] = _first(convert, [_at(content, *place) for place in places])
    for name, key in MEMORY.items():
        values[name] = gigabytes(_at(content, "metric", "mem_usage", key), MIB)
    values["ecc"], values["partition"] = _ecc(content), _partition(content)
    values["throttle_reasons"], values["throttle_counters"] = _throttling(content)
    reasons = dict(NOT_OF_AMD)
    for name, value in values.items():
        if value is None:
            reasons[name] = f"{TOOL} does not say it of this board"
    values["default_power_cap_watts"] = _default_power_cap_watts(values["identifier"])
    if values["default_power_cap_watts"] is None:
        reasons["default_power_cap_watts"] = "the kernel shows no power1_cap_default of this board"
    return GpuState("amd", index, **values, reasons=reasons)


def _first(convert: Callable[[Any], Value | None], candidates: Iterable[Any]) -> Value | None:
    """Return the first candidate that has a value."""
    for candidate in candidates:
        value = convert(candidate)
        if value is not None:
            return value
    return None


def _at(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _ecc(content: Entry) -> str | None:
    """Return `Enabled` if any block has ECC."""
    # each block of the chip has its own state
    blocks = _at(content, "static", "ras", "ecc_block_state")
    if not isinstance(blocks, Mapping) or not blocks:
        return None
    return "Enabled" if "ENABLED" in blocks.values() else "Disabled"


def _partition(content: Entry) -> str | None:
    where = _at(content, "static", "partition")
    compute = text(_at(where, "compute_partition")) or text(_at(where, "accelerator_partition"))
    memory = text(_at(where, "memory_partition"))
    return "/".join(part for part in (compute, memory) if part) or None


def _throttling(content: Entry) -> tuple[tuple[str, ...] | None, dict[str, float] | None]:
    throttle = _at(content, "metric", "throttle")
    # from ROCm 6.3 on; before, one word for all reasons
    states = {name: text(_at(throttle, f"{name}_violation_status")) for name in VIOLATIONS}
    old = text(_at(content, "metric", "power", "throttle_status"))
    active: tuple[str, ...] | None = None
    if any(states.values()):
        active = tuple(name for name, state in states.items() if state == "ACTIVE")
    elif old is not None:
        active = ("throttled",) if old == "THROTTLED" else ()
    counters = {}
    for name in VIOLATIONS:
        count = number(_at(throttle, f"{name}_accumulated"))
        if count is not None:
            counters[name] = count
    samples = number(_at(throttle, "accumulation_counter"))
    if samples is None or not counters:
        return active, None
    return active, counters | {"accumulation_counter": samples}


def processes(states: Sequence[GpuState]) -> Iterator[GpuProcess]:
    """Yield the processes that hold a GPU; raise GpuToolError if amd-smi does not answer."""
    for index, gpu in _gpus("process").items():
        for entry in gpu.get("process_list") or []:
            info = _at(entry, "process_info")
            process_id = number(_at(info, "pid"))
            if process_id is None:
                continue  # "No running processes detected"
            memory_gb = _first(gigabytes, (_at(info, "memory_usage", "vram_mem"), info.get("mem_usage")))
            yield GpuProcess(int(process_id), index, str(info.get("name")), memory_gb)
