"""Reader of AMD GPUs through `rocm-smi`, for machines without amd-smi. Standard library only.

Format: one JSON object with `card0` and so on for the GPUs and `system` for the driver and the processes. All values
are strings; the keys are those of ROCm 5.4 to 7.0 (python_smi_tools/rocm_smi.py of rocm_smi_lib). Log lines before the
object (a warning that a GPU sleeps) are skipped. `Max Graphics Package Power` is the current cap, not the highest
possible one. A process is listed with the number of its GPUs, without their indices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from train.machine.amd_smi import NOT_OF_AMD, default_power_cap_watts
from train.machine.gpu_state import (
    BYTES_PER_GB,
    GpuProcess,
    GpuReading,
    GpuState,
    GpuToolError,
    number,
    output_of,
    text,
)

TOOL = "rocm-smi"
OPTIONS = (
    *("--showproductname", "--showbus", "--showmeminfo", "vram", "--showuse", "--showpower", "--showmaxpower"),
    *("--showclocks", "--showtemp", "--showperflevel", "--showdriverversion", "--showpids", "--json"),
)
NUMBERS = {
    "utilization_percent": ("GPU use (%)",),
    "power_watts": (
        *("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"),
        "Current Graphics Package Power (W)",
    ),
    "power_cap_watts": ("Max Graphics Package Power (W)",),
    "sm_clock_mhz": ("sclk clock speed:",),
    "memory_clock_mhz": ("mclk clock speed:",),
    "temperature_celsius": ("Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
}
MEMORY = {"memory_total_gb": "VRAM Total Memory (B)", "memory_used_gb": "VRAM Total Used Memory (B)"}
TEXTS = {
    "name": ("Card Series", "Card series"),
    "identifier": ("PCI Bus",),
    "performance_level": ("Performance Level",),
}
NOT_SHOWN = (
    *("max_power_cap_watts", "max_sm_clock_mhz", "max_memory_clock_mhz", "throttle_reasons", "throttle_counters"),
    *("ecc", "partition"),
)


def read() -> GpuReading:
    """Return all AMD GPUs that the driver shows here; raise GpuToolError if rocm-smi does not answer."""
    content = _json(output_of(TOOL, *OPTIONS))
    system = content.get("system")
    system = system if isinstance(system, dict) else {}
    cards = {key: value for key, value in content.items() if key.startswith("card") and key[4:].isdecimal()}
    gpus = tuple(_state(int(key[4:]), value, system) for key, value in sorted(cards.items(), key=_card_number))
    return GpuReading(TOOL, gpus, tuple(_processes(system)))


def _card_number(item: tuple[str, Any]) -> int:
    return int(item[0][4:])


def _json(printed: str) -> dict[str, Any]:
    start = printed.find("{")
    try:
        content = json.loads(printed[start:]) if start >= 0 else None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise GpuToolError(f"{TOOL} --json: got {printed[:120]!r}, wanted a JSON object")
    return content


def _state(index: int, card: Mapping[str, Any], system: Mapping[str, Any]) -> GpuState:
    values: dict[str, Any] = {}
    for names, convert in ((NUMBERS, number), (TEXTS, text)):
        for name, keys in names.items():
            values[name] = next((one for key in keys if (one := convert(card.get(key))) is not None), None)
    for name, key in MEMORY.items():
        size = number(card.get(key))
        values[name] = None if size is None else size / BYTES_PER_GB
    values["driver_version"] = text(system.get("Driver version"))
    values["default_power_cap_watts"] = default_power_cap_watts(values["identifier"])
    reasons = {name: f"{TOOL} does not say it of this board" for name, value in values.items() if value is None}
    reasons |= dict.fromkeys(NOT_SHOWN, f"{TOOL} does not show it; install amd-smi") | NOT_OF_AMD
    if values["default_power_cap_watts"] is None:
        reasons["default_power_cap_watts"] = "the kernel shows no power1_cap_default of this board"
    return GpuState("amd", index, **values, reasons=reasons)


def _processes(system: Mapping[str, Any]) -> list[GpuProcess]:
    """Return the processes that hold a GPU.

    Format: `"PID4242": "python3, 8, 121000000000, 0, unknown"`: name, number of GPUs, bytes, SDMA, occupancy. The name
    may contain commas, so the other cells are counted from the end.
    """
    found = []
    for key, value in system.items():
        if not (key.startswith("PID") and key[3:].isdecimal() and isinstance(value, str)):
            continue
        cells = [cell.strip() for cell in value.split(",")]
        if len(cells) < 4:
            raise GpuToolError(f"{TOOL}: got {key} {value!r}, wanted name, GPUs, bytes, SDMA, occupancy")
        *name, gpus, used, _, _ = cells
        size = number(used)
        if gpus != "0":  # such a process has only opened the driver
            found.append(GpuProcess(int(key[3:]), None, " ".join(name), None if size is None else size / BYTES_PER_GB))
    return found
