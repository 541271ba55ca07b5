"""The device that is measured: its clock, its last-level cache and its free memory.

On a GPU, events of CUDA or ROCm take the times. A pause of the device is queued before the first event, so that the
time of the host does not count. On a CPU, `time.perf_counter` takes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

UNKNOWN_CACHE_BYTES = 64 * 2**20
"""Assumed where the kernel shows no cache."""
INFINITY_CACHE_BYTES = 256 * 2**20
"""Of CDNA 3 and 4, beside the L2 of each die. Source: AMD CDNA 3 white paper, 2023, "Infinity Cache"."""
PAUSE_SECONDS = 330e-6
"""Pause of a GPU before the first event, in which the host queues the call."""
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
CYCLES_PER_SECOND = 2e9
"""Upper bound of the clock of a GPU, for the length of a pause."""


class Place:
    """One device: a CPU with the threads that torch has, or the first GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cache_bytes = cache_bytes(device)

    @property
    def free_bytes(self) -> int:
        """Memory that new tensors may take."""
        if self.device.type == "cpu":
            return int(psutil.virtual_memory().available)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0] + cached)

    def release(self) -> None:
        """Give the memory of tensors that were freed back to the device."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def seconds(self, function: Callable[[], Any]) -> float:
        """Return the seconds of one call."""
        return _on_cpu(function) if self.device.type == "cpu" else self._on_gpu(function)

    def _on_gpu(self, function: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(PAUSE_SECONDS * CYCLES_PER_SECOND))
        start.record()
        function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def _on_cpu(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = function()
    end = time.perf_counter()
    del result  # to free it is not part of the call
    return end - start


def cache_bytes(device: torch.device, root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the size of the last-level cache: of a CPU, of all that the process may use together.

    Sources: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu (cache/index*); torch's `L2_cache_size`.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        is_cdna = str(getattr(properties, "gcnArchName", "")).startswith(("gfx94", "gfx95"))
        return INFINITY_CACHE_BYTES if is_cdna else int(properties.L2_cache_size)
    found: dict[str, tuple[int, int]] = {}
    for core in os.sched_getaffinity(0):
        for index in (root / f"cpu{core}" / "cache").glob("index[0-9]*"):
            try:
                level, size = int((index / "level").read_text()), _bytes((index / "size").read_text().strip())
                shared = (index / "shared_cpu_list").read_text().strip()
            except (OSError, ValueError):
                continue
            found[shared] = max(found.get(shared, (0, 0)), (level, size))
    last = max((level for level, _ in found.values()), default=0)
    return sum(size for level, size in found.values() if level == last) or UNKNOWN_CACHE_BYTES


def _bytes(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text.endswith(tuple(UNITS)) else int(text)


def first_gpu_or_cpu(platform: str) -> torch.device:
    """Return the device that is measured on a platform."""
    return torch.device("cpu" if platform == "cpu" else "cuda:0")
