"""The device of a rank: what the step recorder waits for, and its memory. torch is imported on use."""

from __future__ import annotations

import os
import resource
from typing import Protocol

BYTES_PER_GB = 1e9


class Device(Protocol):
    """Interface of the device that the recorder waits for."""

    source: str
    """Origin of the memory figures."""

    def synchronize(self) -> None:
        """Wait until all work of the device is done."""

    def allocated_gb(self) -> float:
        """Memory in use now, GB (1e9 bytes)."""

    def peak_allocated_gb(self) -> float:
        """Largest memory in use since the start, GB."""

    def peak_reserved_gb(self) -> float | None:
        """Largest memory held by the caching allocator, GB; None where there is none."""


class CpuDevice:
    """A process on the CPU; its resident set counts as device memory."""

    source = "resident set of the process (/proc/self/statm, getrusage)"

    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()
        # kept open, because opening it would be four fifths of the cost of a boundary
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    def synchronize(self) -> None:
        """Do nothing: CPU work is done when its call returns."""

    def allocated_gb(self) -> float:
        """Resident set now, GB."""
        pages = int(os.pread(self._statm, 128, 0).split()[1])
        return pages * self._page_bytes / BYTES_PER_GB

    def peak_allocated_gb(self) -> float:
        """Largest resident set of the process, GB (ru_maxrss is in KiB on Linux)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / BYTES_PER_GB

    def peak_reserved_gb(self) -> float | None:
        """None: there is no caching allocator."""
        return None


class CudaDevice:
    """The current CUDA or ROCm device of torch; memory as torch's caching allocator counts it."""

    source = "torch.cuda allocator statistics"

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._cuda.reset_peak_memory_stats()

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        self._cuda.synchronize()

    def allocated_gb(self) -> float:
        """Bytes of live tensors now, in GB."""
        return self._cuda.memory_allocated() / BYTES_PER_GB

    def peak_allocated_gb(self) -> float:
        """Largest amount of live tensors, GB."""
        return self._cuda.max_memory_allocated() / BYTES_PER_GB

    def peak_reserved_gb(self) -> float | None:
        """Largest amount that the allocator held, GB."""
        return self._cuda.max_memory_reserved() / BYTES_PER_GB
