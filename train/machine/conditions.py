"""Conditions of a job: the state of GPUs and machine before and after it, as a section of its result.

For several GPUs the section contains the worst value: the lowest cap, the highest temperature, every throttle reason. A
value that is None has a reason. The rules that judge the section are in train/preflight/job_checks.py (before the
job) and evaluate/fairness/pair_conditions.py (of a pair). Sources of the machine's state: proc(5); Linux,
Documentation/admin-guide: sysctl/kernel.rst (numa_balancing) and pm/cpufreq.rst (scaling_governor).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.machine import gpus, job_processes
from train.machine.gpu_state import GpuProcess, GpuState, GpuToolError, throttled_percent

NO_GPU = "no GPU"
LOWEST = (
    ("power_cap_watts", "default_power_cap_watts", "max_power_cap_watts"),
    ("clock_limit_mhz", "default_clock_limit_mhz"),
    ("max_sm_clock_mhz",),
    ("max_memory_clock_mhz",),
)
"""Values of the GPU with the lowest first one."""
WORDS = ("performance_level", "persistence", "compute_mode", "ecc", "partition", "driver_version")
DECIMALS = 3
BUSY_SAMPLE_SECONDS = 0.5
KIB_PER_GB = 1e9 / 1024
MISSING = {
    "numa_balancing": "this kernel has no /proc/sys/kernel/numa_balancing",
    "numa_nodes": "the kernel shows no NUMA node",
    "cpu_governor": "the kernel shows no cpufreq governor (usual in a virtual machine)",
    "swap_used_gb": "/proc/meminfo cannot be read",
    "shared_memory_gb": "there is no /dev/shm",
    "open_files_limit": "unlimited",
    "locked_memory_gb": "unlimited",
    "busy_percent": "/proc/stat cannot be read",
}
"""Reasons why a value of `MachineState` is None."""


@dataclass(frozen=True)
class MachineState:
    """The machine at one moment, in GB (1e9 bytes) and percent."""

    numa_balancing: bool | None = None
    """True if the kernel moves memory to the threads that use it, which costs time."""
    numa_nodes: int | None = None
    cpu_governor: str | None = None
    """Governor of the cores' clock; several are joined by `or`."""
    busy_percent: float | None = None
    """Share of all cores' time that other processes used while this one waited."""
    swap_used_gb: float | None = None
    shared_memory_gb: float | None = None
    """Size of /dev/shm."""
    open_files_limit: int | None = None
    """Soft limit of one process; None if unlimited."""
    locked_memory_gb: float | None = None
    """Soft limit of one process; None if unlimited."""
    has_infiniband: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """GPUs and machine at one moment."""

    seconds: float
    """time.monotonic()."""
    machine: MachineState
    tool: str | None = None
    gpus: tuple[GpuState, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    why_no_gpus: str = NO_GPU
    """Reason, if `gpus` is empty."""
    why_no_processes: str = NO_GPU


def take_snapshot(platform: str, environ: Mapping[str, str] = os.environ, *, is_before: bool = True) -> Snapshot:
    """Return the current state of the machine and of the GPUs that a job may use.

    The load of the cores is sampled only before a job: after it, the load has no meaning for the job.
    """
    state = read_machine(is_use_sampled=is_before)
    if platform == "cpu":
        return Snapshot(time.monotonic(), state)
    try:
        reading = gpus.read(platform)
    except GpuToolError as error:
        return Snapshot(time.monotonic(), state, why_no_gpus=str(error), why_no_processes=str(error))
    chosen = gpus.visible(reading, platform, environ)
    ours = {gpu.index for gpu in chosen}
    processes = reading.processes
    if processes is not None:
        ourselves = job_processes.ancestors()  # the process that started this one may have opened the GPU
        on_ours = (one for one in processes if one.gpu is None or one.gpu in ours)
        processes = tuple(one for one in on_ours if one.process_id not in ourselves)
    why = f"{reading.tool} lists none" if not chosen else ""
    return Snapshot(time.monotonic(), state, reading.tool, chosen, processes, why, reading.why_no_processes)


def section(before: Snapshot, after: Snapshot | None) -> dict[str, Any]:
    """Return the `conditions` section; `after` is None if there is no snapshot after the job."""
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}

    def note(name: str, value: Any, reason: str) -> None:
        values[name] = round(value, DECIMALS) if isinstance(value, float) else value
        if value is None:
            reasons[name] = reason

    note("gpu_tool", before.tool, before.why_no_gpus)
    note("gpu_count", len(before.gpus) if before.gpus else None, before.why_no_gpus)
    for names in LOWEST:
        lowest = _extreme(before.gpus, names[0], min)
        for name in names:
            note(name, getattr(lowest, name, None), _why(before, name))
    for name in WORDS:
        words = sorted({text for gpu in before.gpus if (text := getattr(gpu, name)) is not None})
        note(name, " or ".join(words) or None, _why(before, name))
    note("gpu_memory_used_gb", _most(before.gpus, "memory_used_gb"), _why(before, "memory_used_gb"))
    note("other_processes", None if before.processes is None else len(before.processes), before.why_no_processes)
    for when, seen in (("before", before), ("after", after)):
        note(
            f"temperature_{when}_celsius", _most(_gpus(seen), "temperature_celsius"), _why(seen, "temperature_celsius")
        )
        note(f"throttle_{when}", _throttling(_gpus(seen)), _why(seen, "throttle_reasons"))
    note("throttled_percent", _throttled(before, after), _why(after, "throttle_counters"))
    for name in MISSING:
        key = "busy_before_percent" if name == "busy_percent" else name
        note(key, getattr(before.machine, name), before.machine.reasons.get(name, "not read"))
    return values | {"reasons": reasons}


def _gpus(seen: Snapshot | None) -> Sequence[GpuState]:
    return seen.gpus if seen else ()


def _why(seen: Snapshot | None, name: str) -> str:
    if seen is None:
        return "nobody looked after the job"
    if not seen.gpus:
        return seen.why_no_gpus
    return next((gpu.why(name) for gpu in seen.gpus if getattr(gpu, name) is None), "not to be compared")


def _most(states: Sequence[GpuState], name: str) -> float | None:
    found = _extreme(states, name, max)
    return None if found is None else float(getattr(found, name))


def _extreme(states: Sequence[GpuState], name: str, choose: Callable[..., GpuState]) -> GpuState | None:
    """Return the GPU with the lowest (`min`) or highest (`max`) value; None if any GPU lacks it."""
    if not states or any(getattr(gpu, name) is None for gpu in states):
        return None
    return choose(states, key=lambda gpu: getattr(gpu, name))


def _throttling(states: Sequence[GpuState]) -> list[str] | None:
    if not states or any(gpu.throttle_reasons is None for gpu in states):
        return None
    return sorted({reason for gpu in states for reason in gpu.throttle_reasons or ()})


def _throttled(before: Snapshot, after: Snapshot | None) -> dict[str, float] | None:
    """Return for each reason its share of the time between the snapshots, on the GPU with the highest share."""
    if after is None or not before.gpus or [gpu.index for gpu in before.gpus] != [gpu.index for gpu in after.gpus]:
        return None
    seconds = after.seconds - before.seconds
    shares = [throttled_percent(one, two, seconds) for one, two in zip(before.gpus, after.gpus, strict=True)]
    if any(share is None for share in shares):
        return None
    names = {name for share in shares if share for name in share}
    return {name: round(max((share or {}).get(name, 0.0) for share in shares), DECIMALS) for name in sorted(names)}


def read_machine(root: Path | None = None, *, is_use_sampled: bool = True) -> MachineState:
    """Return the state of this machine; sampling the use of the cores takes half a second.

    `root` is the parent of /proc, /sys and /dev (tests); default: TPRIMAT_SYSROOT or the real root.
    """
    top = root or Path(os.environ.get("TPRIMAT_SYSROOT") or "/")
    balancing = _text(top / "proc/sys/kernel/numa_balancing")
    nodes = len(list(top.glob("sys/devices/system/node/node[0-9]*")))
    governors = {_text(file) for file in top.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")} - {None}
    locked = _limit(resource.RLIMIT_MEMLOCK)
    values: dict[str, Any] = {
        "numa_balancing": None if balancing is None else balancing != "0",
        "numa_nodes": nodes or None,
        "cpu_governor": " or ".join(sorted(map(str, governors))) or None,
        "busy_percent": _busy_percent(top / "proc/stat") if is_use_sampled else None,
        "swap_used_gb": _swap_used_gb(top / "proc/meminfo"),
        "shared_memory_gb": _size_gb(top / "dev/shm"),
        "open_files_limit": _limit(resource.RLIMIT_NOFILE),
        "locked_memory_gb": None if locked is None else locked / 1e9,
    }
    reasons = {name: MISSING[name] for name, value in values.items() if value is None}
    if not is_use_sampled:
        reasons["busy_percent"] = "not sampled"
    return MachineState(**values, has_infiniband=any(top.glob("dev/infiniband/uverbs*")), reasons=reasons)


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _busy_percent(file: Path) -> float | None:
    first = _cpu_times(file)
    time.sleep(BUSY_SAMPLE_SECONDS if first else 0)
    last = _cpu_times(file)
    if first is None or last is None or last[1] <= first[1]:
        return None
    return 100 * (last[0] - first[0]) / (last[1] - first[1])


def _cpu_times(file: Path) -> tuple[int, int] | None:
    """Return busy and total ticks of user nice system idle iowait irq softirq steal. `user` includes guests."""
    line = _text(file)
    if line is None or not line.startswith("cpu "):
        return None
    ticks = [int(word) for word in line.splitlines()[0].split()[1:9]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def _swap_used_gb(file: Path) -> float | None:
    lines = dict(line.split(":", 1) for line in (_text(file) or "").splitlines() if ":" in line)
    try:
        total, free = (int(lines[key].split()[0]) for key in ("SwapTotal", "SwapFree"))
    except (KeyError, ValueError):
        return None
    return (total - free) / KIB_PER_GB


def _size_gb(folder: Path) -> float | None:
    try:
        there = os.statvfs(folder)
    except OSError:
        return None
    return there.f_blocks * there.f_frsize / 1e9
