"""The GPUs of this machine, read with the first tool of their vendor that answers. Standard library only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping

from train.machine import amd_smi, nvidia_smi
from train.machine.gpu_state import GpuReading, GpuState, GpuToolError

READERS = {
    "nvd": {nvidia_smi.TOOL: nvidia_smi.read},
    "amd": {amd_smi.TOOL: amd_smi.read, amd_smi.ROCM_TOOL: amd_smi.read_rocm},
}
"""Reader of each tool by platform; the first tool that is installed and answers is used."""
VISIBLE = {"nvd": ("CUDA_VISIBLE_DEVICES",), "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")}


def installed(platform: str) -> list[str]:
    """Return the tools of the platform that are on PATH."""
    return [tool for tool in READERS[platform] if shutil.which(tool)]


def read(platform: str) -> GpuReading:
    """Return the reading of the vendor's tool; `platform` is `nvd` or `amd`. Raises GpuToolError if none answers."""
    problems = []
    for tool, reader in READERS[platform].items():
        if not shutil.which(tool):
            problems.append(f"{tool} is not installed")
            continue
        try:
            return reader()
        except GpuToolError as error:
            problems.append(str(error))
    raise GpuToolError("; ".join(problems))


def visible(reading: GpuReading, platform: str, environ: Mapping[str, str]) -> tuple[GpuState, ...]:
    """Return the GPUs that a job started with `environ` may use, selected by number or by the beginning of the UUID.

    Return all of them if no variable restricts them, or if one names something unknown here (a MIG slice).
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
