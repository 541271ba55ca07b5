"""Memory bandwidth of the device: copy and triad of arrays that no cache holds, and copies from the host.

Bytes are counted as STREAM counts them: a copy a[i] = b[i] moves two arrays, a triad a[i] = b[i] + q c[i] three; what a
cache reads before it writes is not counted. Each array has at least four times the size of the last-level cache.
Source: McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA Newsletter,
December 1995, and the run rules of https://www.cs.virginia.edu/stream/.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import psutil
import torch

from train.probing.timing import measured, short, spread_percent

COPY, TRIAD, HOST_TO_DEVICE = "copy", "triad", "host_to_device"
ARRAYS = {COPY: 2, TRIAD: 3, HOST_TO_DEVICE: 1}
"""Arrays that each of them moves."""
BYTES = {"cpu": 4 * 2**30, "cuda": 2**30}
"""Four times the largest last-level cache: 1 GiB of two AMD EPYC 9755, 256 MiB of CDNA 3 and 4 ("Infinity Cache", AMD
CDNA 3 white paper, 2023; the L2 of NVIDIA's GPUs is smaller)."""
HOST_BYTES = 2**28
SCALAR = 3.0


def measure(device: torch.device, name: str, seconds: float) -> dict[str, float]:
    """Return gb_per_second, its spread_percent, and the bytes of one pass in GB; raise RuntimeError if impossible."""
    run, size = _case(device, name)
    times, moved = measured(run, seconds), ARRAYS[name] * size
    return {
        "gb_per_second": short(moved / statistics.median(times) / 1e9),
        "spread_percent": spread_percent(times),
        "gb": short(moved / 1e9),
    }


def array_bytes(device: torch.device) -> int:
    """Return the size of one array: BYTES, and three of them within half of the free memory."""
    is_cpu = device.type == "cpu"
    free = psutil.virtual_memory().available if is_cpu else torch.cuda.mem_get_info(device)[0]
    return int(min(BYTES[device.type], free / 6)) // 8 * 8


def _case(device: torch.device, name: str) -> tuple[Callable[[], Any], int]:
    """Return what is timed, and the bytes of one array."""
    if name == HOST_TO_DEVICE:
        if device.type == "cpu":
            raise NotImplementedError("the device of the cpu platform is the host")
        source = torch.ones(HOST_BYTES // 4).pin_memory()
        target = torch.empty_like(source, device=device)
        return lambda: target.copy_(source, non_blocking=True), HOST_BYTES
    size = array_bytes(device)
    a, b, c = (torch.full((size // 4,), 1.5, device=device) for _ in range(3))
    return (lambda: a.copy_(b)) if name == COPY else (lambda: torch.add(b, c, alpha=SCALAR, out=a)), size
