"""Memory bandwidth of the device: copy and triad of arrays that no cache holds, and copies from the host.

Bytes are counted as STREAM counts them: a copy a[i] = b[i] moves two arrays, a triad a[i] = b[i] + q c[i] three; what a
cache reads before it writes is not counted. Each array has at least four times the size of the last-level cache.
Source: McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE TCCA Newsletter,
December 1995, and the run rules of https://www.cs.virginia.edu/stream/.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from train.probing.place import Place
from train.probing.rates import LEAST_SAMPLES, median, short

COPY, TRIAD, HOST_TO_DEVICE = "copy", "triad", "host_to_device"
CACHES = 4
LEAST_BYTES = {"cpu": 2**26, "cuda": 2**30}
HOST_BYTES = 2**28
MOST_SAMPLES = 1000
SCALAR = 3.0
NO_LINK = "the device of the cpu platform is the host"


def measure(place: Place, seconds: float) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Return bandwidths by name, each measured for `seconds`, and the reasons of those that could not be."""
    found: dict[str, dict[str, float]] = {}
    reasons: dict[str, str] = {}
    size = array_bytes(place)
    cases = {COPY: 2, TRIAD: 3, HOST_TO_DEVICE: 1}
    for name, arrays in cases.items():
        try:
            run, moved = _case(name, place, size)
            found[name] = _bandwidth(place, run, arrays * moved, seconds)
        except (RuntimeError, NotImplementedError) as error:
            reasons[name] = str(error).strip().splitlines()[0][:200] or type(error).__name__
        place.release()
    return found, reasons


def array_bytes(place: Place) -> int:
    """Return the size of one array: beyond every cache, and three of them within half of the free memory."""
    wanted = max(CACHES * place.cache_bytes, LEAST_BYTES[place.device.type])
    return int(min(wanted, place.free_bytes / 6)) // 8 * 8


def _case(name: str, place: Place, size: int) -> tuple[Callable[[], Any], int]:
    """Return what is timed, and the bytes of one array."""
    if name == HOST_TO_DEVICE:
        if place.device.type == "cpu":
            raise NotImplementedError(NO_LINK)
        moved = min(size, HOST_BYTES)
        source = torch.ones(moved // 4).pin_memory()
        target = torch.empty(moved // 4, device=place.device)
        return lambda: target.copy_(source, non_blocking=True), moved
    a, b, c = (torch.full((size // 4,), 1.5, device=place.device) for _ in range(3))
    if name == COPY:
        return lambda: a.copy_(b), size
    return lambda: torch.add(b, c, alpha=SCALAR, out=a), size


def _bandwidth(place: Place, run: Callable[[], Any], moved: int, seconds: float) -> dict[str, float]:
    """Return gb_per_second, spread_percent of its median, and the bytes of one pass in GB."""
    run()
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < LEAST_SAMPLES or (len(samples) < MOST_SAMPLES and time.perf_counter() < deadline):
        samples.append(place.seconds(run))
    middle = median(samples)
    return {
        "gb_per_second": short(moved / middle.seconds / 1e9),
        "spread_percent": round(middle.spread_percent, 2),
        "gb": short(moved / 1e9),
    }
