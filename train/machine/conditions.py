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
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from train.machine import gpus, job_processes
from train.machine.gpu_state import GpuProcess, GpuState, GpuToolError, largest, sysroot, throttled_percent

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


@dataclass(frozen=True)
class Snapshot:
    """GPUs and machine at one moment."""

    seconds: float
    """time.monotonic()."""
    machine: Mapping[str, Any]
    """The values of MACHINE and `has_infiniband`; empty after a job."""
    tool: str | None = None
    gpus: tuple[GpuState, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    why_no_gpus: str = NO_GPU
    """Reason, if `gpus` is empty."""
    why_no_processes: str = NO_GPU


def take_snapshot(platform: str, environ: Mapping[str, str] = os.environ, *, is_before: bool = True) -> Snapshot:
    """Return the current state of the machine and of the GPUs that a job may use.

    The machine is read only before a job: after it, the load of the cores has no meaning for the job. Sampling the use
    of the cores takes half a second.
    """
    top, state = sysroot(), {}
    if is_before:
        state = {name: read(top) for name, (read, _) in MACHINE.items()}
        state["has_infiniband"] = any(top.glob("dev/infiniband/uverbs*"))
    if platform == "cpu":
        return Snapshot(time.monotonic(), state)
    try:
        reading = gpus.read(platform)
    except GpuToolError as error:
        return Snapshot(time.monotonic(), state, why_no_gpus=str(error), why_no_processes=str(error))
    chosen = gpus.visible(reading, platform, environ)
    indices = {gpu.index for gpu in chosen}
    # the process that started this one may have opened the GPU
    ourselves = job_processes.ancestors()
    processes = reading.processes
    if processes is not None:
        others = []
        for process in processes:
            is_here = process.gpu is None or process.gpu in indices
            if is_here and process.process_id not in ourselves:
                others.append(process)
        processes = tuple(others)
    why = f"{reading.tool} lists none" if not chosen else ""
    return Snapshot(time.monotonic(), state, reading.tool, chosen, processes, why, reading.why_no_processes)


def section(before: Snapshot, after: Snapshot | None) -> dict[str, Any]:
    """Return the `conditions` section; `after` is None if there is no snapshot after the job."""
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    after = after or Snapshot(before.seconds, {}, why_no_gpus="nobody looked after the job")

    def note(name: str, value: Any, reason: str) -> None:
        values[name] = round(value, DECIMALS) if isinstance(value, float) else value
        # no null without a reason
        if value is None:
            reasons[name] = reason

    note("gpu_tool", before.tool, before.why_no_gpus)
    note("gpu_count", len(before.gpus) if before.gpus else None, before.why_no_gpus)
    for names in LOWEST:
        gpu = None
        if _of_all(before.gpus, names[0]):
            # all values of one line are of the same GPU, the slowest one
            gpu = min(before.gpus, key=attrgetter(names[0]))
        for name in names:
            note(name, getattr(gpu, name, None), _why(before, name))
    for name in WORDS:
        words = {getattr(gpu, name) for gpu in before.gpus} - {None}
        note(name, " or ".join(sorted(words)) or None, _why(before, name))
    used = max(_of_all(before.gpus, "memory_used_gb"), default=None)
    note("gpu_memory_used_gb", used, _why(before, "memory_used_gb"))
    note("other_processes", None if before.processes is None else len(before.processes), before.why_no_processes)
    for when, seen in (("before", before), ("after", after)):
        heat = max(_of_all(seen.gpus, "temperature_celsius"), default=None)
        slowed = _of_all(seen.gpus, "throttle_reasons")
        note(f"temperature_{when}_celsius", heat, _why(seen, "temperature_celsius"))
        note(f"throttle_{when}", sorted(set().union(*slowed)) if slowed else None, _why(seen, "throttle_reasons"))
    note("throttled_percent", _throttled(before, after), _why(after, "throttle_counters"))
    for name, (_, why_unknown) in MACHINE.items():
        note(name, before.machine[name], why_unknown)
    return values | {"reasons": reasons}


def _why(seen: Snapshot, name: str) -> str:
    if not seen.gpus:
        return seen.why_no_gpus
    for gpu in seen.gpus:
        if getattr(gpu, name) is None:
            return gpu.reasons.get(name, "the tool does not say")
    return "not to be compared"


def _of_all(states: Sequence[GpuState], name: str) -> list[Any]:
    """Return a value of each GPU; an empty list if any GPU lacks it."""
    values = [getattr(gpu, name) for gpu in states]
    return [] if None in values else values


def _throttled(before: Snapshot, after: Snapshot) -> dict[str, float] | None:
    """Return for each reason its share of the time between the snapshots, on the GPU with the highest share."""
    # shares are of one and the same GPU
    if not before.gpus or [gpu.index for gpu in before.gpus] != [gpu.index for gpu in after.gpus]:
        return None
    shares = []
    for first, last in zip(before.gpus, after.gpus, strict=True):
        share = throttled_percent(first, last, after.seconds - before.seconds)
        if share is None:
            return None
        shares.append(share)
    return largest(shares)


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _numa_balancing(top: Path) -> bool | None:
    mode = _text(top / "proc/sys/kernel/numa_balancing")
    return None if mode is None else mode != "0"


def _governors(top: Path) -> str | None:
    files = top.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")
    governors = {_text(file) for file in files} - {None}
    return " or ".join(sorted(map(str, governors))) or None


def _limit(which: int, unit: float | None = None) -> float | None:
    """Return the soft limit of one process, in units; None if unlimited."""
    soft = resource.getrlimit(which)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    return soft if unit is None else soft / unit


def _busy_percent(top: Path) -> float | None:
    first = _cpu_ticks(top)
    if first:
        time.sleep(BUSY_SAMPLE_SECONDS)
    spent = [after - before for before, after in zip(first, _cpu_ticks(top), strict=False)]
    if sum(spent) <= 0:
        return None
    idle = sum(spent[3:5])  # idle and iowait
    return 100 * (sum(spent) - idle) / sum(spent)


def _cpu_ticks(top: Path) -> list[int]:
    """Return the ticks of user nice system idle iowait irq softirq steal. `user` includes guests."""
    return [int(word) for word in (_text(top / "proc/stat") or "").partition("\n")[0].split()[1:9]]


def _swap_used_gb(top: Path) -> float | None:
    sizes = {}
    for line in (_text(top / "proc/meminfo") or "").splitlines():
        name, _, size = line.partition(":")
        sizes[name] = size.removesuffix("kB").strip()
    try:
        return (int(sizes["SwapTotal"]) - int(sizes["SwapFree"])) / KIB_PER_GB
    except (KeyError, ValueError):
        return None


def _shared_memory_gb(top: Path) -> float | None:
    try:
        there = os.statvfs(top / "dev/shm")
    except OSError:
        return None
    return there.f_blocks * there.f_frsize / 1e9


MACHINE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "numa_balancing": (
        _numa_balancing,
        "this kernel has no /proc/sys/kernel/numa_balancing",
    ),
    "numa_nodes": (
        lambda top: len(list(top.glob("sys/devices/system/node/node[0-9]*"))) or None,
        "the kernel shows no NUMA node",
    ),
    "cpu_governor": (_governors, "the kernel shows no cpufreq governor (usual in a virtual machine)"),
    "swap_used_gb": (_swap_used_gb, "/proc/meminfo cannot be read"),
    "shared_memory_gb": (_shared_memory_gb, "there is no /dev/shm"),
    "open_files_limit": (lambda _: _limit(resource.RLIMIT_NOFILE), "unlimited"),
    "locked_memory_gb": (lambda _: _limit(resource.RLIMIT_MEMLOCK, 1e9), "unlimited"),
    "busy_before_percent": (_busy_percent, "/proc/stat cannot be read"),
}
"""Facts about the machine: function that reads each, and the reason why one is None.

`numa_balancing` is True if the kernel moves memory to the threads that use it, which costs time; several governors of
the cores' clock are joined by `or`; limits are the soft ones of one process; `busy_before_percent` is the share of all
cores' time that other processes used while this one waited. GB are 1e9 bytes."""
