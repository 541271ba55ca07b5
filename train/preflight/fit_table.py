"""The fit table: the memory that each job needs by the estimate, and the devices that have it.

`shell/run_train.sh --dry-run` prints it for the jobs of a matrix, also on a machine without a GPU. The devices are rows
of utils/hardware/devices.py, with the memory of their datasheets; what a driver reports is up to 7 % more, because
boards are sold in GB and built in GiB. No number has been measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from train.job.job import Job
from train.preflight.fit import LAYERS
from utils.hardware.devices import DEVICES, Device
from utils.memory.estimate import FRAMEWORKS, estimate
from utils.memory.fit import USABLE, change_text, changes_that_fit, lower_bound_gb

SHOWN = {
    "nvd": ("NVIDIA H100 SXM 80GB", "NVIDIA H200 SXM 141GB", "NVIDIA B200 180GB"),
    "amd": ("AMD Instinct MI300X", "AMD Instinct MI325X", "AMD Instinct MI355X"),
}
"""Devices of a platform, by their names in the table of devices."""


def devices_of(*platforms: str) -> list[Device]:
    """Return the devices of the platforms in the order of SHOWN."""
    by_name = {device.name: device for device in DEVICES}
    return [by_name[name] for platform in platforms for name in SHOWN[platform]]


def row(job: Job, devices: Sequence[Device]) -> list[str]:
    """Return the GB that a job needs, and for each device `fits`, `may not fit`, or the settings that would fit."""
    found = estimate(job.config, job.framework, job.spec)
    return [f"{found.total_gb:.1f}", *(_verdict(job, device.memory_gb) for device in devices)]


def _verdict(job: Job, capacity_gb: float) -> str:
    found = estimate(job.config, job.framework, job.spec)
    if found.total_gb <= USABLE * capacity_gb:
        return "fits"
    changes = changes_that_fit(job.config, job.framework, job.spec, capacity_gb)
    may = "may not fit" if lower_bound_gb(found) <= capacity_gb else "no"
    return f"{may}; {change_text(changes[0])}" if changes else may


def terminal_table(jobs: Iterable[Job]) -> str | None:
    """Return the table of the jobs of one platform for a terminal; None for a CPU and for jobs without a formula."""
    first = {(job.framework, job.model): job for job in jobs if job.framework in FRAMEWORKS}
    if not first or (platform := next(iter(first.values())).config.platform) not in SHOWN:
        return None
    devices = devices_of(platform)
    lines = [f"memory of one GPU by the estimate, GB; not measured; {LAYERS}:"]
    width = max(len(device.name) for device in devices)
    for (framework, model), job in first.items():
        needs, *verdicts = row(job, devices)
        lines.append(f"  {framework} {model} needs {needs}")
        for device, verdict in zip(devices, verdicts, strict=True):
            lines.append(f"    {device.name:{width}}  {device.memory_gb:>5g}  {verdict}")
    return "\n".join(lines)
