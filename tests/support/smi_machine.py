"""Machines with GPUs for the tests: the stand-ins of smi_tools.py on their own PATH, and their answers."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from example import example_result
from train.energy import sampler, section

TOOLS = Path(__file__).parent / "smi_tools.py"
COUNTERS = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
EVENTS = ["clocks_event_reasons.active", *(f"clocks_event_reasons_counters.{name}" for name in COUNTERS)]
RESERVED = "memory.reserved"
OLD = "clocks_throttle_reasons.active"
FIELDS = [
    *("index", "uuid", "name", "driver_version", "persistence_mode", "compute_mode", "ecc.mode.current"),
    *("mig.mode.current", "memory.total", "memory.used", "utilization.gpu", "power.draw", "power.limit"),
    *("enforced.power.limit", "power.default_limit", "power.max_limit", "clocks.sm", "clocks.mem", "clocks.max.sm"),
    *("clocks.max.mem", "clocks.applications.graphics", "clocks.default_applications.graphics", "temperature.gpu"),
    OLD,
]
"""Fields that nvidia-smi of driver 470 knows; those of 550 and 580 also know EVENTS and RESERVED."""
H100 = {
    "index": "0",
    "uuid": "GPU-0f3c5a52-3a1e-4c1c-9a77-0d6a1f6f0001",
    "name": "NVIDIA H100 80GB HBM3",
    "driver_version": "550.54.15",
    "persistence_mode": "Enabled",
    "compute_mode": "Default",
    "ecc.mode.current": "Enabled",
    "mig.mode.current": "Disabled",
    "memory.total": "81559",
    "memory.used": "3",
    RESERVED: "[N/A]",
    "utilization.gpu": "0",
    "power.draw": "69.58",
    "power.limit": "700.00",
    "enforced.power.limit": "700.00",
    "power.default_limit": "700.00",
    "power.max_limit": "700.00",
    "clocks.sm": "1980",
    "clocks.mem": "2619",
    "clocks.max.sm": "1980",
    "clocks.max.mem": "2619",
    "clocks.applications.graphics": "1980",
    "clocks.default_applications.graphics": "1980",
    "temperature.gpu": "31",
    OLD: "0x0000000000000001",
    **dict.fromkeys(EVENTS, "0"),
    "clocks_event_reasons.active": "0x0000000000000001",
}


def watts(value: float) -> dict[str, Any]:
    return {"value": value, "unit": "W"}


def mi300x_static(index: int = 0, cap: int = 750) -> dict[str, Any]:
    """AMD SMI 24.6 (ROCm 6.2) of one MI300X."""
    return {
        "gpu": index,
        "asic": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "asic_serial": "N/A"},
        "bus": {"bdf": f"0000:0{5 + index}:00.0", "max_pcie_width": 16},
        "limit": {"max_power": watts(750), "min_power": watts(0), "socket_power": watts(cap)},
        "driver": {"name": "amdgpu", "version": "6.8.5"},
        "ras": {"eeprom_version": "0x0", "ecc_block_state": {"UMC": "ENABLED", "SDMA": "DISABLED"}},
        "partition": {"compute_partition": "SPX", "memory_partition": "NPS1"},
    }


def mi300x_metric(index: int = 0, used_mb: int = 285) -> dict[str, Any]:
    """AMD SMI 24.6 (ROCm 6.2) of one idle MI300X: no `throttle` yet."""
    clock = {"min_clk": {"value": 132, "unit": "MHz"}, "clk_locked": "DISABLED", "deep_sleep": "ENABLED"}
    return {
        "gpu": index,
        "usage": {"gfx_activity": {"value": 0, "unit": "%"}, "umc_activity": {"value": 0, "unit": "%"}},
        "power": {"socket_power": watts(141), "gfx_voltage": "N/A", "throttle_status": "N/A"},
        "clock": {
            "gfx_0": clock | {"clk": {"value": 132, "unit": "MHz"}, "max_clk": {"value": 2100, "unit": "MHz"}},
            "mem_0": clock | {"clk": {"value": 900, "unit": "MHz"}, "max_clk": {"value": 1300, "unit": "MHz"}},
        },
        "temperature": {"edge": "N/A", "hotspot": {"value": 38, "unit": "C"}, "mem": {"value": 31, "unit": "C"}},
        "perf_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
        "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": used_mb, "unit": "MB"}},
    }


NO_PROCESS = {"process_info": "No running processes detected"}


def amd_process(process_id: int, used_bytes: int, name: str = "python3") -> dict[str, Any]:
    """AMD SMI 24.6 of a process."""
    unit = {"unit": "B"}
    memory = {"gtt_mem": {"value": 2097152} | unit, "vram_mem": {"value": used_bytes} | unit}
    info = {"name": name, "pid": process_id, "memory_usage": memory, "mem_usage": {"value": used_bytes} | unit}
    return {"process_info": info | {"usage": {"gfx": {"value": 0, "unit": "ns"}}}}


class Machine:
    """A folder that is the whole PATH, and the answers of the tools in it."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.answers, self.root = folder / "bin", folder / "answers", folder / "root"
        for each in (self.bin, self.answers, self.root):
            each.mkdir()
        self.environment = {
            "PATH": str(self.bin),
            "FAKE_SMI": str(self.answers),
            "TPRIMAT_SYSROOT": str(self.root),
        }

    def install(self, tool: str) -> None:
        """Put the stand-in of a tool on the PATH."""
        path = self.bin / tool
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {TOOLS} {tool} "$@"\n')
        path.chmod(0o755)

    def nvidia(
        self, *gpus: dict[str, str], fields: list[str] | None = None, processes: Any = (), **broken: Any
    ) -> None:
        """Install nvidia-smi; `fields` are those it knows (default: a driver 550), `broken` and `code` make it fail."""
        self.install("nvidia-smi")
        known = [*FIELDS, *EVENTS, RESERVED] if fields is None else fields
        content = {"gpus": gpus, "fields": known, "processes": list(processes), **broken}
        (self.answers / "nvidia.json").write_text(json.dumps(content))

    def amd(self, static: Any, metric: Any, process: Any = None) -> None:
        """Install amd-smi with these answers."""
        self.install("amd-smi")
        nobody = [{"gpu": 0, "process_list": [NO_PROCESS]}]
        for name, content in (("static", static), ("metric", metric), ("process", process or nobody)):
            (self.answers / f"amd_{name}.json").write_text(json.dumps(content))

    def calls(self) -> list[str]:
        """Return the commands that were run."""
        return (self.answers / "calls").read_text().splitlines()


# Machines of both vendors for the tests: the real zeus above stand-ins of pynvml and amdsmi, with a made-up clock.

FOLDER = Path(__file__).parent / "smi_libraries"
ROOTS = ("zeus", "pynvml", "amdsmi", "standin_machine")
TOKENS = 64 * 128
"""Of a step of `example_result`."""


class Clock:
    """Seconds that pass only when somebody sleeps, and `late` seconds more each time."""

    def __init__(self, late: float = 0.0) -> None:
        self.seconds, self._late = 0.0, late

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds + self._late


@contextmanager
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the module `standin_machine`; pynvml and amdsmi are stand-ins meanwhile."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in [name for name in sys.modules if name.split(".")[0] in ROOTS]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("standin_machine")
    for name in [name for name in sys.modules if name.split(".")[0] in ROOTS]:
        del sys.modules[name]


def open_gpus(platform: str, bus_ids: list[str] | None, count: int, why: str = "") -> tuple[str, Any]:
    """Return library and readers of the GPUs at these addresses of the stand-in."""
    return sampler.OPENERS[platform](bus_ids, why, count)


def of_gpus(
    platform: str,
    time: Clock,
    bus_ids: list[str] | None,
    *,
    gpus: int | None = None,
    change: Callable[[Any], None] = lambda node: None,
    pause: float = 0.0,
    step: float = 1.0,
) -> dict[str, Any]:
    """Return `energy_metrics` of 13 steps on these GPUs; `change` may bend the samples."""
    count = gpus or len(bus_ids or ())
    library, found = open_gpus(platform, bus_ids, count)
    sources = sampler.Sources(found, (), library, {"rapl": "no RAPL"})
    return _of_13_steps(platform, sources, count, time, time.sleep, change, pause, step)


def of_processors(root: Path, watts: dict[str, float], start_uj: float = 1e6) -> dict[str, Any]:
    """Return `energy_metrics` of 13 steps on processors that draw `watts`, whose counters are files below `root`."""
    time = Clock()
    with patch.dict(os.environ, TPRIMAT_SYSROOT=str(root)):
        sources = sampler.open_sources("cpu", 1, {})

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        for package in sources.packages:
            counted = (start_uj + 1e6 * watts[package.name] * time.seconds) % package.wraps_uj
            package.path.write_text(f"{counted:.0f}\n")

    sleep(0.0)
    return _of_13_steps("cpu", sources, 1, time, sleep)


def _of_13_steps(
    platform: str,
    sources: Any,
    gpus: int,
    time: Clock,
    sleep: Callable[[float], None],
    change: Callable[[Any], None] = lambda node: None,
    pause: float = 0.0,
    step: float = 1.0,
) -> dict[str, Any]:
    """Return `energy_metrics` of 13 steps of `step` seconds from 1 s on, 10 of them steady (4 s on), sampled for 15 s.

    The last two steps come later by `pause`.
    """
    times = {"steps": list(range(1, 14)), "step_times": [step] * 13}
    result = example_result(platform=platform, **times, training_config__num_gpus=gpus)
    header = sampler.header(platform, 0, sources)
    ends = [1.0 + step * (number + 1) + pause * (number > 10) for number in range(13)]
    clock = {name: header[name] for name in ("boot", "unix_at_zero")} | {"ends": ends}
    node = section.NodeSamples(header, why=dict(sources.reasons))

    def take(sample: dict[str, Any]) -> None:
        node.samples.append(sample)
        node.why |= sample.get("why") or {}

    sampler.sample_until(lambda: time.seconds >= 15, sources, take, time.now, sleep)
    change(node)
    return section.of_job([node], result, clock)
