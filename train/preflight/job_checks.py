"""Checks of the machine before and after a job: warnings on stderr and in the result, and the job's conditions.

With STRICT=1, any warning before the job refuses it (exit code 2). A warning tells a person the state that was found
(other work on GPUs or cores, a setting that slows a job down), the usual state, and what to do. On a machine without a
GPU only the rules for its cores and memory apply.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from train.machine import conditions, job_processes
from train.machine.conditions import Snapshot
from train.machine.gpu_state import GpuProcess, GpuState
from utils.errors import ConfigError
from utils.readings import attempt
from utils.results import schema
from utils.results.schema import SLOWDOWNS
from utils.settings.config import RunConfig

TOLERANCE = 0.01
"""Tools round caps to whole watts."""
MOST_PROCESSES = 8
GOVERNOR = "performance"
NOT_READ_BEFORE = "the conditions could not be read before the job"


def before(config: RunConfig, earlier: Sequence[str] = ()) -> tuple[Snapshot | None, list[str]]:
    """Check GPUs and machine, print warnings on stderr, and return the snapshot and the warnings after `earlier` ones.

    The snapshot is None, with a warning, where it cannot be made. Raises ConfigError with all warnings if STRICT is
    set.
    """

    def look() -> tuple[Snapshot, list[str]]:
        seen = conditions.take_snapshot(config.platform)
        return seen, warnings(config.platform, seen, config.nodes)

    looked, why = attempt(look)
    # what only reports must not stop a job
    seen, lines = looked or (None, [f"{NOT_READ_BEFORE}: {why}"])
    disturbing = [*earlier, *lines]
    if disturbing and config.strict:
        raise ConfigError(
            f"STRICT=1: {'; '.join(disturbing)}; fix this, or set STRICT=0 to only record it in the result"
        )
    for line in disturbing:
        print(f"warning: {line}", file=sys.stderr)
    return seen, disturbing


def with_conditions(
    result: dict[str, Any],
    config: RunConfig,
    seen: Snapshot | None,
    disturbing: list[str],
    *,
    is_interrupted: bool = False,
) -> dict[str, Any]:
    """Return the result of a job that has just ended with its conditions and the warnings `disturbing` before it.

    After an interrupt there is no second snapshot, because the user is waiting.
    """

    def read() -> tuple[dict[str, Any], list[str]]:
        if seen is None:
            return schema.unknown("conditions", NOT_READ_BEFORE), []
        # the user is waiting, and a reading takes seconds
        if is_interrupted:
            return conditions.section(seen, None), []
        then = conditions.take_snapshot(config.platform, is_before=False)
        section = conditions.section(seen, then)
        return section, after(then, section["throttled_percent"])

    read_now, why = attempt(read)
    section, lines = read_now or (schema.unknown("conditions", why), [f"conditions: {why}"])
    new = [line for line in (*disturbing, *lines) if line not in result["warnings"]]
    return result | {"warnings": result["warnings"] + new, "conditions": section}


def warnings(platform: str, seen: Snapshot, nodes: int = 1) -> list[str]:
    """Return one line for each condition in `seen` that disturbs a job on `platform`."""
    state = {**seen.machine, "nodes": nodes}
    of_cores = [f"machine: {text.format(**state)}" for holds, text in CORES if holds(state)]
    if platform == "cpu":
        return of_cores
    if not seen.gpus:
        return [f"gpu: the conditions are unknown: {seen.why_no_gpus}; see ./shell/gpu.sh", *of_cores]
    lines = list(_processes(seen.processes or ()))
    for gpu in seen.gpus:
        facts = _facts(gpu)
        lines += [f"gpu {gpu.index}: {text.format(**facts)}" for holds, text in GPU if holds(gpu)]
    lines += _differing(seen.gpus)
    lines += [f"machine: {text.format(**state)}" for holds, text in HOST_OF_GPUS if holds(state)]
    return lines + of_cores


def _above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit


def _below(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value < limit * (1 - TOLERANCE)


def _level(gpu: GpuState) -> str:
    return (gpu.performance_level or "auto").lower().removeprefix("amdsmi_dev_perf_level_")


def _slowed(gpu: GpuState) -> str:
    return ", ".join(reason for reason in gpu.throttle_reasons or () if reason in SLOWDOWNS)


def _facts(gpu: GpuState) -> dict[str, Any]:
    """Return the fields of a GPU for the texts of GPU, with the command that raises its power cap."""
    watts = gpu.default_power_cap_watts
    if watts is None:
        watts = gpu.max_power_cap_watts or 0.0
    to_raise = f"nvidia-smi -i {gpu.index} -pl {watts:g}" if gpu.vendor == "nvd" else "rocm-smi --resetpoweroverdrive"
    return vars(gpu) | {"to_raise_cap": to_raise, "level": _level(gpu), "slowed": _slowed(gpu)}


GPU: tuple[tuple[Callable[[GpuState], bool], str], ...] = (
    (
        # drivers hold 0.3 GB of an idle MI300X, up to 1 GB of NVIDIA boards
        lambda gpu: _above(gpu.memory_used_gb, 2.0),
        "{memory_used_gb:.1f} GB are in use before the job; see ./shell/gpu.sh",
    ),
    (
        lambda gpu: _above(gpu.utilization_percent, 5.0),
        "is {utilization_percent:.0f} % busy before the job; see ./shell/gpu.sh",
    ),
    (
        lambda gpu: _below(gpu.power_cap_watts, gpu.default_power_cap_watts),
        "power cap {power_cap_watts:g} W, below the default of {default_power_cap_watts:g} W; as root: {to_raise_cap}",
    ),
    (
        lambda gpu: gpu.default_power_cap_watts is None and _below(gpu.power_cap_watts, gpu.max_power_cap_watts),
        "power cap {power_cap_watts:g} W of {max_power_cap_watts:g} W at most, and the default is unknown; "
        "as root: {to_raise_cap}",
    ),
    (
        lambda gpu: _below(gpu.clock_limit_mhz, gpu.default_clock_limit_mhz),
        "clock limited to {clock_limit_mhz:g} MHz, default {default_clock_limit_mhz:g} MHz; "
        "as root: nvidia-smi -i {index} -rac",
    ),
    (
        lambda gpu: _level(gpu) not in ("auto", "unknown"),
        "performance level {level}, usual: auto; as root: rocm-smi --setperflevel auto",
    ),
    (
        lambda gpu: _slowed(gpu) != "",
        "is slowed down before the job ({slowed}); look at cooling and power supply",
    ),
    (
        lambda gpu: gpu.vendor == "nvd" and gpu.persistence == "Disabled",
        "persistence mode is off: the driver starts anew with each job; as root: nvidia-smi -i {index} -pm 1",
    ),
    (
        lambda gpu: gpu.compute_mode not in (None, "Default"),
        "compute mode {compute_mode}, usual: Default; as root: nvidia-smi -i {index} -c 0",
    ),
    (
        lambda gpu: gpu.vendor == "nvd" and gpu.partition == "Enabled",
        "MIG is on: a job gets a slice; as root: nvidia-smi -mig 0",
    ),
)
"""Conditions of a GPU that disturb a job, and the warning of each."""
MachineRules = tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...]
HOST_OF_GPUS: MachineRules = (
    (
        # containers start with 64 MB, too little for the exchange of NCCL and RCCL and for the workers of a loader
        lambda state: state["shared_memory_gb"] is not None and state["shared_memory_gb"] < 1.0,
        "/dev/shm has {shared_memory_gb:.2f} GB; start the container with --ipc=host or --shm-size=16g",
    ),
    (
        lambda state: state["open_files_limit"] is not None and state["open_files_limit"] < 4096,
        "a process may open {open_files_limit} files; ulimit -n 65536",
    ),
    (
        lambda state: state["locked_memory_gb"] is not None and (state["nodes"] > 1 or state["has_infiniband"]),
        "a process may lock {locked_memory_gb:.3g} GB, InfiniBand wants no limit; ulimit -l unlimited",
    ),
    (
        lambda state: state["cpu_governor"] not in (None, GOVERNOR),
        f"the cores' governor is {{cpu_governor}}; as root: cpupower frequency-set -g {GOVERNOR}",
    ),
    (
        lambda state: _above(state["swap_used_gb"], 1.0),
        "{swap_used_gb:.1f} GB are swapped out; end what holds the memory",
    ),
)
"""Conditions of the machine that disturb a job on its GPUs."""
CORES: MachineRules = (
    (
        lambda state: _above(state["busy_before_percent"], 20.0),
        "{busy_before_percent:.0f} % of the cores' time went to other work before the job; stop other work before "
        "measuring",
    ),
    (
        lambda state: bool(state["numa_balancing"]) and (state["numa_nodes"] or 0) > 1,
        "NUMA balancing is on; as root: sysctl kernel.numa_balancing=0",
    ),
)
"""Conditions of the machine that disturb every job."""


def after(seen: Snapshot, throttled: dict[str, float] | None) -> list[str]:
    """Return one line for each slowdown of the GPUs during the job; `throttled` is in percent of the time."""
    lines = []
    for reason, share in (throttled or {}).items():
        if reason in SLOWDOWNS and share >= 1:
            lines.append(f"gpu: slowed down for {share:.0f} % of the job ({reason}); look at the cooling")
    active = {reason for gpu in seen.gpus for reason in gpu.throttle_reasons or ()} & SLOWDOWNS
    if active and not lines:
        lines.append(f"gpu: slowed down after the job ({', '.join(sorted(active))}); look at the cooling")
    return lines


def _processes(processes: Sequence[GpuProcess]) -> Iterator[str]:
    # a machine with eight ranks of somebody else would fill the screen
    for holder in processes[:MOST_PROCESSES]:
        who = holder.name.rsplit("/", 1)[-1]
        size = "memory" if holder.memory_gb is None else f"{holder.memory_gb:.1f} GB"
        where = "a GPU" if holder.gpu is None else f"GPU {holder.gpu}"
        left = ""
        process = job_processes.look_up(holder.process_id)
        if process is not None:
            who += f", {process.user}"
            if process.is_left_behind:
                left = "; a job of this suite left it behind: ./shell/gpu.sh --end-ours"
        yield f"gpu: process {holder.process_id} ({who}) holds {size} of {where}{left}"
    more = len(processes) - MOST_PROCESSES
    if more > 0:
        yield f"gpu: {more} more {'process holds' if more == 1 else 'processes hold'} GPUs; see ./shell/gpu.sh"


def _differing(gpus: Sequence[GpuState]) -> Iterator[str]:
    for name, title, unit in (("power_cap_watts", "power caps", "W"), ("max_sm_clock_mhz", "highest clocks", "MHz")):
        values = {getattr(gpu, name) for gpu in gpus} - {None}
        if values and _below(min(values), max(values)):
            yield f"gpu: {title} differ, {min(values):g} to {max(values):g} {unit}; the slowest holds up all others"
