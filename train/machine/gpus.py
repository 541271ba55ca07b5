"""The GPUs of this machine, by whichever tool of their vendor answers. Standard library only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from train.machine import amd as gpu_amd
from train.machine import nvidia as gpu_nvidia
from train.machine import rocm as gpu_rocm
from train.machine.gpu_state import GpuReading, GpuState, GpuToolError

READERS = {"nvd": (gpu_nvidia,), "amd": (gpu_amd, gpu_rocm)}
"""Modules by platform; the first whose tool is there and answers counts."""
VISIBLE = {"nvd": ("CUDA_VISIBLE_DEVICES",), "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}


def installed(platform: str) -> list[str]:
    """Return the tools of the platform that are on PATH."""
    return [module.TOOL for module in READERS[platform] if shutil.which(module.TOOL)]


def read(platform: str) -> GpuReading:
    """Return what the vendor's tool says; `platform` is `nvd` or `amd`. Raises GpuToolError where none answers."""
    said = []
    for module in READERS[platform]:
        if not shutil.which(module.TOOL):
            said.append(f"{module.TOOL} is not installed")
            continue
        try:
            reading: GpuReading = module.read()
        except GpuToolError as error:
            said.append(str(error))
        else:
            return reading
    raise GpuToolError("; ".join(said))


def visible(reading: GpuReading, platform: str, environ: Mapping[str, str]) -> tuple[GpuState, ...]:
    """Return the GPUs that a job started with `environ` may use, by number or by the beginning of the UUID.

    All of them where no variable narrows them, and where one says what cannot be told apart here (a MIG slice).
    """
    chosen = reading.gpus
    for name in VISIBLE[platform]:
        wanted = environ.get(name)
        if wanted is None or not re.fullmatch(r"[\w-]+(,[\w-]+)*", wanted):
            continue
        numbered = dict(enumerate(chosen))
        named = [_named(one, numbered) for one in wanted.split(",")]
        if all(named):
            chosen = tuple(gpu for gpu in named if gpu is not None)
    return chosen


def _named(one: str, gpus: Mapping[int, GpuState]) -> GpuState | None:
    if one.isdecimal():
        return gpus.get(int(one))
    return next((gpu for gpu in gpus.values() if (gpu.identifier or "").startswith(one)), None)
