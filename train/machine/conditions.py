"""Conditions of a job: the state of GPUs and machine before and after it, as a section of its result.

For several GPUs the section contains the worst value: the lowest cap, the highest temperature, every throttle reason. A
value that is None has a reason. The rules that judge the section are in train/preflight/machine_warnings.py (before the
job) and evaluate/fairness/pair_conditions.py (of a pair).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train.machine import gpus, job_processes, machine_state
from train.machine.gpu_state import GpuProcess, GpuState, GpuToolError, throttled_percent
from train.machine.machine_state import MachineState

NO_GPU = "no GPU"
OF_MACHINE = (
    *("numa_balancing", "numa_nodes", "cpu_governor", "swap_used_gb", "shared_memory_gb", "open_files_limit"),
    "locked_memory_gb",
)
OF_LOWEST_CAP = ("power_cap_watts", "default_power_cap_watts", "max_power_cap_watts")
OF_LOWEST_LIMIT = ("clock_limit_mhz", "default_clock_limit_mhz")
LOWEST = ("max_sm_clock_mhz", "max_memory_clock_mhz")
WORDS = ("performance_level", "persistence", "compute_mode", "ecc", "partition", "driver_version")
DECIMALS = 3


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
    state = machine_state.read(is_use_sampled=is_before)
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
    for names in (OF_LOWEST_CAP, OF_LOWEST_LIMIT):
        lowest = _lowest(before.gpus, names[0])
        for name in names:
            note(name, getattr(lowest, name, None), _why(before, name))
    for name in LOWEST:
        note(name, getattr(_lowest(before.gpus, name), name, None), _why(before, name))
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
    for name in OF_MACHINE:
        note(name, getattr(before.machine, name), before.machine.reasons.get(name, "not read"))
    note("busy_before_percent", before.machine.busy_percent, before.machine.reasons.get("busy_percent", "not read"))
    return values | {"reasons": reasons}


def _gpus(seen: Snapshot | None) -> Sequence[GpuState]:
    return seen.gpus if seen else ()


def _why(seen: Snapshot | None, name: str) -> str:
    if seen is None:
        return "nobody looked after the job"
    if not seen.gpus:
        return seen.why_no_gpus
    return next((gpu.why(name) for gpu in seen.gpus if getattr(gpu, name) is None), "not to be compared")


def _lowest(states: Sequence[GpuState], name: str) -> GpuState | None:
    """Return the GPU with the lowest value; None if any GPU lacks it."""
    return _extreme(states, name, min)


def _most(states: Sequence[GpuState], name: str) -> float | None:
    found = _extreme(states, name, max)
    return None if found is None else float(getattr(found, name))


def _extreme(states: Sequence[GpuState], name: str, choose: Callable[..., GpuState]) -> GpuState | None:
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
