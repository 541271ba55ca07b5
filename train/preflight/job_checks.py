"""Checks of the machine before and after a job: warnings on stderr and in the result, and the job's conditions.

With STRICT=1, any warning before the job refuses it (exit code 2). A rule returns lines for a person: the state that
was found (other work on GPUs or cores, a setting that slows a job down), the usual state, and what to do. On a machine
without a GPU only the rules for its cores and memory apply.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from train.machine import conditions, job_processes
from train.machine.conditions import Snapshot
from train.machine.gpu_state import GpuProcess, GpuState
from utils.errors import ConfigError
from utils.results.schema import SLOWDOWNS
from utils.settings.config import RunConfig

USUAL_MEMORY_GB = 2.0
"""Upper bound of the memory that drivers hold on an idle GPU: 0.3 GB on an MI300X, up to 1 GB on NVIDIA boards."""
USUAL_USE_PERCENT = 5.0
TOLERANCE = 0.01
"""Tools round caps to whole watts."""
MAX_BUSY_PERCENT = 20.0
LEAST_SHARED_MEMORY_GB = 1.0
"""Containers start with 64 MB, too little for the exchange of NCCL and RCCL and for the workers of a loader."""
LEAST_OPEN_FILES = 4096
MAX_SWAP_GB = 1.0
MOST_PROCESSES = 8
GOVERNOR = "performance"


def before(config: RunConfig, earlier: Sequence[str] = ()) -> tuple[Snapshot, list[str]]:
    """Check GPUs and machine, print warnings on stderr, and return the snapshot and the warnings after `earlier` ones.

    Raises ConfigError with all warnings if STRICT is set.
    """
    seen = conditions.take_snapshot(config.platform)
    found = [*earlier, *warnings(config.platform, seen, config.nodes)]
    if found and config.strict:
        raise ConfigError(f"STRICT=1: {'; '.join(found)}; fix this, or set STRICT=0 to only record it in the result")
    for line in found:
        print(f"warning: {line}", file=sys.stderr)
    return seen, found


def with_conditions(
    result: dict[str, Any], config: RunConfig, seen: Snapshot, found: list[str], *, is_interrupted: bool = False
) -> dict[str, Any]:
    """Return the result of a job that has just ended with its conditions and the warnings `found` before it.

    After an interrupt there is no second snapshot, because the user is waiting.
    """
    then = None if is_interrupted else conditions.take_snapshot(config.platform, is_before=False)
    section = conditions.section(seen, then)
    lines = found + (after(then, section["throttled_percent"]) if then else [])
    new = [line for line in lines if line not in result["warnings"]]
    return result | {"warnings": result["warnings"] + new, "conditions": section}


def warnings(platform: str, seen: Snapshot, nodes: int = 1) -> list[str]:
    """Return one line for each condition in `seen` that disturbs a job on `platform`."""
    found = [*_machine(seen)]
    if platform == "cpu":
        return found
    if not seen.gpus:
        return [f"gpu: the conditions are unknown: {seen.why_no_gpus}; see ./shell/gpu.sh", *found]
    rules = (_memory, _use, _cap, _clocks, _slowed, _modes)
    lines = [f"gpu {gpu.index}: {line}" for gpu in seen.gpus for rule in rules for line in rule(gpu)]
    return [*_processes(seen.processes or ()), *lines, *_differing(seen.gpus), *_host_of_gpus(seen, nodes), *found]


def after(seen: Snapshot, throttled: dict[str, float] | None) -> list[str]:
    """Return one line for each slowdown of the GPUs during the job; `throttled` is in percent of the time."""
    active = sorted({reason for gpu in seen.gpus for reason in gpu.throttle_reasons or ()} & SLOWDOWNS)
    slow = {name: share for name, share in (throttled or {}).items() if name in SLOWDOWNS and share >= 1}
    lines = [
        f"gpu: slowed down for {share:.0f} % of the job ({name}); look at the cooling" for name, share in slow.items()
    ]
    return lines or [f"gpu: slowed down after the job ({', '.join(active)}); look at the cooling"] * bool(active)


def _processes(processes: Sequence[GpuProcess]) -> Iterator[str]:
    for one in processes[:MOST_PROCESSES]:
        found = job_processes.look_up(one.process_id)
        whose = f", {found.user}" if found else ""
        size = "memory" if one.memory_gb is None else f"{one.memory_gb:.1f} GB"
        where = "a GPU" if one.gpu is None else f"GPU {one.gpu}"
        left = (
            "; a job of this suite left it behind: ./shell/gpu.sh --end-ours" if found and found.is_left_behind else ""
        )
        name = one.name.rsplit("/", 1)[-1]
        yield f"gpu: process {one.process_id} ({name}{whose}) holds {size} of {where}{left}"
    more = len(processes) - MOST_PROCESSES
    if more > 0:
        yield f"gpu: {more} more {'process holds' if more == 1 else 'processes hold'} GPUs; see ./shell/gpu.sh"


def _memory(gpu: GpuState) -> Iterator[str]:
    if gpu.memory_used_gb is not None and gpu.memory_used_gb > USUAL_MEMORY_GB:
        yield f"{gpu.memory_used_gb:.1f} GB are in use before the job; see ./shell/gpu.sh"


def _use(gpu: GpuState) -> Iterator[str]:
    if gpu.utilization_percent is not None and gpu.utilization_percent > USUAL_USE_PERCENT:
        yield f"is {gpu.utilization_percent:.0f} % busy before the job; see ./shell/gpu.sh"


def _cap(gpu: GpuState) -> Iterator[str]:
    cap, default, most = gpu.power_cap_watts, gpu.default_power_cap_watts, gpu.max_power_cap_watts
    if cap is None:
        return
    if default is not None:
        if cap < default * (1 - TOLERANCE):
            yield f"power cap {cap:g} W, below the default of {default:g} W; {_raise_cap(gpu, default)}"
    elif most is not None and cap < most * (1 - TOLERANCE):
        yield f"power cap {cap:g} W of {most:g} W at most, and the default is unknown; {_raise_cap(gpu, most)}"


def _raise_cap(gpu: GpuState, watts: float) -> str:
    command = f"nvidia-smi -i {gpu.index} -pl {watts:g}" if gpu.vendor == "nvd" else "rocm-smi --resetpoweroverdrive"
    return f"as root: {command}"


def _clocks(gpu: GpuState) -> Iterator[str]:
    limit, default = gpu.clock_limit_mhz, gpu.default_clock_limit_mhz
    if limit is not None and default is not None and limit < default * (1 - TOLERANCE):
        yield f"clock limited to {limit:g} MHz, default {default:g} MHz; as root: nvidia-smi -i {gpu.index} -rac"
    level = (gpu.performance_level or "auto").lower().removeprefix("amdsmi_dev_perf_level_")
    if level not in ("auto", "unknown"):
        yield f"performance level {level}, usual: auto; as root: rocm-smi --setperflevel auto"


def _slowed(gpu: GpuState) -> Iterator[str]:
    reasons = [reason for reason in gpu.throttle_reasons or () if reason in SLOWDOWNS]
    if reasons:
        yield f"is slowed down before the job ({', '.join(reasons)}); look at cooling and power supply"


def _modes(gpu: GpuState) -> Iterator[str]:
    if gpu.vendor == "nvd" and gpu.persistence == "Disabled":
        yield f"persistence mode is off: the driver starts anew with each job; as root: nvidia-smi -i {gpu.index} -pm 1"
    if gpu.compute_mode not in (None, "Default"):
        yield f"compute mode {gpu.compute_mode}, usual: Default; as root: nvidia-smi -i {gpu.index} -c 0"
    if gpu.vendor == "nvd" and gpu.partition == "Enabled":
        yield "MIG is on: a job gets a slice; as root: nvidia-smi -mig 0"


def _differing(gpus: Sequence[GpuState]) -> Iterator[str]:
    for name, what, unit in (("power_cap_watts", "power caps", "W"), ("max_sm_clock_mhz", "highest clocks", "MHz")):
        values = sorted({value for gpu in gpus if (value := getattr(gpu, name)) is not None})
        if values and values[0] < values[-1] * (1 - TOLERANCE):
            yield f"gpu: {what} differ, {values[0]:g} to {values[-1]:g} {unit}; the slowest holds up all others"


def _host_of_gpus(seen: Snapshot, nodes: int) -> Iterator[str]:
    state = seen.machine
    shared_gb, locked_gb = state.shared_memory_gb, state.locked_memory_gb
    if shared_gb is not None and shared_gb < LEAST_SHARED_MEMORY_GB:
        yield f"machine: /dev/shm has {shared_gb:.2f} GB; start the container with --ipc=host or --shm-size=16g"
    if state.open_files_limit is not None and state.open_files_limit < LEAST_OPEN_FILES:
        yield f"machine: a process may open {state.open_files_limit} files; ulimit -n 65536"
    if locked_gb is not None and (nodes > 1 or state.has_infiniband):
        yield f"machine: a process may lock {locked_gb:.3g} GB, InfiniBand wants no limit; ulimit -l unlimited"
    if state.cpu_governor not in (None, GOVERNOR):
        yield f"machine: the cores' governor is {state.cpu_governor}; as root: cpupower frequency-set -g {GOVERNOR}"
    if state.swap_used_gb is not None and state.swap_used_gb > MAX_SWAP_GB:
        yield f"machine: {state.swap_used_gb:.1f} GB are swapped out; end what holds the memory"


def _machine(seen: Snapshot) -> Iterator[str]:
    state = seen.machine
    if state.busy_percent is not None and state.busy_percent > MAX_BUSY_PERCENT:
        busy = f"{state.busy_percent:.0f} % of the cores' time went to other work before the job"
        yield f"machine: {busy}; stop other work before measuring"
    if state.numa_balancing and (state.numa_nodes or 0) > 1:
        yield "machine: NUMA balancing is on; as root: sysctl kernel.numa_balancing=0"
