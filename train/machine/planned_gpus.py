"""What a plan needs to know of this machine: its GPUs, the memory of one, the threads of a rank; no GPU is started.

The GPUs come from torch, before it is installed from the vendor's tool.
"""

from __future__ import annotations

import importlib.util
import os

from train.machine import gpus
from train.machine.gpu_state import GpuState, GpuToolError
from utils.hardware import detect
from utils.hardware.devices import find_device, short_name
from utils.memory.estimate import cpu_capacity_gb
from utils.settings.config import RunConfig


def has_torch() -> bool:
    """Return True if torch is installed for this Python."""
    return importlib.util.find_spec("torch") is not None


def count(platform: str) -> int | None:
    """Return the number of visible GPUs, 0 where neither torch nor a tool can tell; None on the cpu platform."""
    return detect.visible_gpus(platform) if platform == "cpu" or has_torch() else len(_listed(platform))


def device(platform: str) -> str | None:
    """Return the short name (B200) of the visible GPUs; None on the cpu platform and for unknown ones."""
    if platform == "cpu" or has_torch():
        return detect.visible_device(platform)
    names = {_short(gpu) for gpu in _listed(platform)}
    return names.pop() if len(names) == 1 else None


def _listed(platform: str) -> tuple[GpuState, ...]:
    try:
        return gpus.visible(gpus.read(platform), platform, os.environ)
    except GpuToolError:
        return ()


def _short(gpu: GpuState) -> str | None:
    found = find_device(gpu.name, gpu.memory_total_gb) if gpu.name else None
    return short_name(found) if found else None


def capacity_gb(config: RunConfig) -> tuple[float | None, str]:
    """Return the memory of one device (on a CPU: of one rank), GB (1e9 bytes), and its source; None if unknown."""
    if config.launcher == "slurm":
        return None, "Slurm selects the nodes"
    if config.platform == "cpu":
        return cpu_capacity_gb(config.ranks_per_node)
    try:
        reading = gpus.read(config.platform)
    except GpuToolError as error:
        return None, str(error)
    visible = gpus.visible(reading, config.platform, os.environ)
    sizes = [gpu.memory_total_gb for gpu in visible if gpu.memory_total_gb is not None]
    return min(sizes, default=None), next((gpu.name for gpu in visible if gpu.name), config.platform)


def threads_of_a_rank(config: RunConfig, cores: int | None = None) -> int:
    """Return the threads of one rank if the user sets none: its share of the cores."""
    return max(1, (cores or os.cpu_count() or 1) // config.ranks_per_node)
