"""The driver of the GPUs against the CUDA or ROCm that torch was built for: an older driver is named in the plan."""

from __future__ import annotations

import importlib
import platform as python_platform
import re

from train.machine import gpus, planned_gpus
from train.machine.gpu_state import GpuToolError

LEAST: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {
    # NVIDIA, CUDA Compatibility, "Minor Version Compatibility", table 1:
    # https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    "nvd": {(13,): (580,), (12,): (525,), (11,): (450,)},
    # AMD, "User and AMD GPU Driver (amdgpu) support matrix" (17 September 2025), the oldest driver of each release:
    # https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html
    # It had no row for ROCm 7.1 and later; drivers after 6.4 are numbered from 30.10 on.
    "amd": {(7, 0): (6, 2), (6, 4): (6, 1), (6, 3): (6, 1), (6, 2): (6, 0), (6, 1): (5, 7)},
}
"""Oldest driver by the beginning of the version of CUDA (major) or ROCm (major, minor)."""
STACKS = {"nvd": ("NVIDIA", "CUDA", "cuda"), "amd": ("amdgpu", "ROCm", "hip")}
"""Names of driver and software, and the attribute of torch.version."""
REMEDY = {
    "nvd": "install a newer driver, or put the image's /usr/local/cuda/compat first in LD_LIBRARY_PATH",
    "amd": "install a newer driver, or use an image of an older ROCm",
}


def line(platform: str) -> str | None:
    """Return one line on a driver that is too old or cannot be judged; None if it is new enough, and without torch."""
    if platform == "cpu" or not planned_gpus.has_torch():
        return None
    driver_name, stack, attribute = STACKS[platform]
    built_for = getattr(importlib.import_module("torch").version, attribute)
    if built_for is None:
        return None  # another torch; detection of the platform refuses it
    try:
        found = {gpu.driver_version for gpu in gpus.read(platform).gpus} - {None}
    except GpuToolError as error:
        return f"note: driver: version unknown ({error}); {stack} {built_for} is not held against it"
    for driver in sorted(filter(None, found)):
        least = _least(platform, built_for)
        if least is None:
            return f"note: driver: {driver_name} {driver} with {stack} {built_for}: no row in train/machine/drivers.py"
        if driver == python_platform.release():  # amd-smi's answer for the amdgpu of the kernel itself
            return f"note: driver: the amdgpu of kernel {driver} has no version to hold against {stack} {built_for}"
        if _numbers(driver) < least:
            wanted = ".".join(map(str, least))
            why = f"older than {wanted}, which {stack} {built_for} of this torch needs"
            return f"warning: driver: {driver_name} {driver} is {why}; {REMEDY[platform]}"
    return None


def _least(platform: str, built_for: str) -> tuple[int, ...] | None:
    version = _numbers(built_for)
    return next((least for start, least in LEAST[platform].items() if version[: len(start)] == start), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
