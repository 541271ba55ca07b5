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

MEGABYTE = 1e6


@dataclass(frozen=True)
class Cost:
    """One run of a command with all processes that it waited for."""

    wall: float
    """Seconds from start to exit."""
    cpu: float
    """Seconds of CPU time."""
    code: int
    """Exit code."""


def cost_of(command: Sequence[str], **given: Any) -> Cost:
    """Run a command and return its cost."""
    started = time.perf_counter()
    process = subprocess.Popen(command, **given)
    # the kernel adds up what the command's own processes used, as far as they were waited for
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(wall, usage.ru_utime + usage.ru_stime, process.returncode)


def machine(*libraries: str) -> str:
    """Return one line about this machine, with the versions of Python and of some libraries."""
    versions = [f"{name} {metadata.version(name)}" for name in libraries]
    return ", ".join([platform.machine(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}", *versions])


def spread(values: Sequence[float], digits: int) -> str:
    """Return median, smallest and largest of some values: `1.2 (1.1 to 1.4)`."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
