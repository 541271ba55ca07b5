"""The GPUs of this machine, read with the first tool of their vendor that answers. Standard library only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence

from train.machine import amd_smi, nvidia_smi
from train.machine.gpu_state import GpuReading, GpuState, GpuToolError

READERS = {
    "nvd": {nvidia_smi.TOOL: nvidia_smi.read},
    "amd": {amd_smi.TOOL: amd_smi.read, amd_smi.ROCM_TOOL: amd_smi.read_rocm},
}
"""Reader of each tool by platform; the first tool that is installed and answers is used."""
VISIBLE = {
    "nvd": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
"""Variables by level: one level counts within what the one before shows, and in a level the first that is set counts.

Sources: torch/cuda/__init__.py of torch 2.13, _parse_visible_devices (HIP's before CUDA's, both within ROCR's); ROCm
7.1.1, "ROCm environment variables", GPU isolation (HIP reads either); CUDA Programming Guide, CUDA_VISIBLE_DEVICES.
"""


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

    As in CUDA and HIP the first number that no GPU has ends a list. An empty list hides all GPUs, as does a GPU that
    is named twice. A variable that names something unknown here (a MIG slice, a UUID of AMD) restricts nothing.
    """
    chosen = reading.gpus
    for level in VISIBLE[platform]:
        wanted = next((environ[name] for name in level if name in environ), None)
        if wanted is not None:
            chosen = _selected(wanted, chosen)
    return chosen


def _selected(wanted: str, gpus: Sequence[GpuState]) -> tuple[GpuState, ...]:
    found: list[GpuState] = []
    for one in (part.strip() for part in wanted.split(",")):
        if re.fullmatch(r"[+-]?\d*", one):
            named = [gpus[int(one)]] if one.isdecimal() and int(one) < len(gpus) else []
            if not named:
                break
        else:
            named = [gpu for gpu in gpus if (gpu.identifier or "").startswith(one)][:1]
            if not named:
                return tuple(gpus)
        if named[0] in found:
            return ()
        found += named
    return tuple(found)
