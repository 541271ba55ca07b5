"""Measurements that several benchmarks share: a command with all its processes, the machine, and a spread."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import psutil

MEGABYTE = 1e6


@dataclass(frozen=True)
class Cost:
    """One run of a command, over all its processes."""

    wall: float
    """Seconds from start to exit."""
    cpu: float
    """Seconds of CPU time."""
    peak_mb: float
    """Largest sum of the resident memory of processes alive together; shared pages count once per process."""
    code: int
    """Exit code."""


def cost_of(command: Sequence[str], sample_seconds: float | None = None, **given: Any) -> Cost:
    """Run a command and return its cost; its memory is sampled every `sample_seconds`, or not at all."""
    before, started, peak = os.times(), time.perf_counter(), 0
    with subprocess.Popen(command, **given) as process:
        while sample_seconds and process.poll() is None:
            peak = max(peak, _resident_bytes(process.pid))
            time.sleep(sample_seconds)
        process.wait()
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall, cpu, peak / MEGABYTE, process.returncode)


def _resident_bytes(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(process.memory_info().rss for process in [root, *root.children(recursive=True)])
    except psutil.Error:  # a process ended meanwhile: the next sample counts
        return 0


def machine(*libraries: str) -> str:
    """Return one line about this machine, with the versions of Python and of some libraries."""
    versions = [f"{name} {metadata.version(name)}" for name in libraries]
    return ", ".join([platform.machine(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}", *versions])


def columns(values: Sequence[float], width: int, digits: int) -> str:
    """Return median, smallest and largest of some values in columns."""
    return "".join(f"{value:{width}.{digits}f}" for value in (statistics.median(values), min(values), max(values)))
