"""The memory of the device and the threads that a rank gets on this machine, read without starting a GPU."""

from __future__ import annotations

import os

from train.machine import gpus
from train.machine.gpu_state import GpuToolError
from utils.memory.estimate import cpu_capacity_gb
from utils.settings.config import RunConfig


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
