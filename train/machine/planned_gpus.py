"""The GPUs of this machine as far as a plan needs them: from torch, before it is installed from the vendor's tool."""

from __future__ import annotations

import importlib.util
import os

from train.machine import gpus
from train.machine.gpu_state import GpuState, GpuToolError
from utils.hardware import detect
from utils.hardware.devices import find_device, short_name


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
