"""State of this machine that affects the speed of a job, read from Linux. Standard library only.

A value that cannot be read is None and has a reason. Sources: proc(5); Linux, Documentation/admin-guide:
sysctl/kernel.rst (numa_balancing) and pm/cpufreq.rst (scaling_governor).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BUSY_SAMPLE_SECONDS = 0.5
KIB_PER_GB = 1e9 / 1024


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


def read(root: Path | None = None, *, is_use_sampled: bool = True) -> MachineState:
    """Return the state of this machine; sampling the use of the cores takes half a second.

    `root` is the parent of /proc, /sys and /dev (tests); default: TPRIMAT_SYSROOT or the real root.
    """
    top = root or Path(os.environ.get("TPRIMAT_SYSROOT") or "/")
    balancing = _text(top / "proc/sys/kernel/numa_balancing")
    nodes = len(list(top.glob("sys/devices/system/node/node[0-9]*")))
    governors = {_text(file) for file in top.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")} - {None}
    busy = _busy_percent(top / "proc/stat") if is_use_sampled else None
    swap = _swap_used_gb(top / "proc/meminfo")
    shm = _size_gb(top / "dev/shm")
    why = {
        "numa_balancing": (balancing, "this kernel has no /proc/sys/kernel/numa_balancing"),
        "numa_nodes": (nodes or None, "the kernel shows no NUMA node"),
        "cpu_governor": (governors or None, "the kernel shows no cpufreq governor (usual in a virtual machine)"),
        "busy_percent": (busy, "/proc/stat cannot be read" if is_use_sampled else "not sampled"),
        "swap_used_gb": (swap, "/proc/meminfo cannot be read"),
        "shared_memory_gb": (shm, "there is no /dev/shm"),
        "open_files_limit": (_limit(resource.RLIMIT_NOFILE), "unlimited"),
        "locked_memory_gb": (_limit(resource.RLIMIT_MEMLOCK), "unlimited"),
    }
    locked = _limit(resource.RLIMIT_MEMLOCK)
    return MachineState(
        numa_balancing=None if balancing is None else balancing != "0",
        numa_nodes=nodes or None,
        cpu_governor=" or ".join(sorted(map(str, governors))) or None,
        busy_percent=busy,
        swap_used_gb=swap,
        shared_memory_gb=shm,
        open_files_limit=_limit(resource.RLIMIT_NOFILE),
        locked_memory_gb=None if locked is None else locked / 1e9,
        has_infiniband=any(top.glob("dev/infiniband/uverbs*")),
        reasons={name: reason for name, (value, reason) in why.items() if value is None},
    )


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
