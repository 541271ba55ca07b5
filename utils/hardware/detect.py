"""Detection of the platform of this process, and the `gpu_info` section of its result.

torch is imported only when it is needed; a caller may pass it in (tests pass a fake).
"""

from __future__ import annotations

import importlib
import json
import os
import platform as python_platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.hardware.devices import Device, find_device, recognised, short_name
from utils.readings import attempt

PLATFORMS = ("amd", "nvd", "cpu")
TOOL_TIMEOUT_SECONDS = 60.0
"""A driver failure can leave its tool hanging."""
CUDA_CORES_PER_SM = {(8, 0): 64, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 3): 128}
"""By compute capability, for the boards in DEVICES. Source: NVIDIA CUDA C++ Programming Guide (2025), Arithmetic
Instructions: results a clock and SM for 32-bit floating-point add."""
STREAM_PROCESSORS_PER_CU = 64
"""Source: AMD CDNA 2, 3 and 4 Architecture white papers."""


class HardwareError(RuntimeError):
    """The suite cannot measure this hardware, or it is not the one in PLATFORM; the message states what to do."""


def detect_platform(environ: Mapping[str, str], torch_module: Any = None) -> str:
    """Return `amd`, `nvd` or `cpu`: PLATFORM if it is set, otherwise the platform that torch detects.

    A CUDA or ROCm build of torch that sees no GPU is `cpu`. PLATFORM=cpu is allowed on any machine. Raises
    HardwareError for an unknown PLATFORM or one that torch contradicts, for another kind of accelerator, and without
    torch.
    """
    wanted = environ.get("PLATFORM", "")
    if wanted and wanted not in PLATFORMS:
        raise HardwareError(f"PLATFORM: got {wanted!r}, wanted {', '.join(PLATFORMS)}; unset it to detect the platform")
    # a GPU of any machine may be left unused, also an unknown kind
    if wanted == "cpu":
        return wanted
    found = _visible_platform(torch_module or _import_torch())
    if wanted and wanted != found:
        raise HardwareError(
            f"PLATFORM: got {wanted}, but this torch computes on {found}; install the torch of that platform, make its "
            "GPUs visible, or unset PLATFORM"
        )
    return found


def gpu_info(platform: str, device_count: int, torch_module: Any = None) -> dict[str, object]:
    """Return the `gpu_info` section of a result, with a reason for each null.

    `device_count` is the number of devices (on a CPU: of ranks) of the whole job. `total_memory_gb` (1 GB = 1e9 bytes)
    is of one device, on a CPU the RAM of the machine; `gpu_cores` are of one device. Raises HardwareError if this
    process sees no GPU of the platform, or GPUs that differ.
    """
    torch = torch_module or _import_torch()
    values = _cpu_values() if platform == "cpu" else _gpu_values(platform, torch)
    values |= {"device_count": device_count, "pytorch_version": str(torch.__version__)}
    reasons = {}
    for key, value in values.items():
        if isinstance(value, _Noted):
            values[key] = value.value
            reasons[key] = value.reason
    return {**values, "reasons": reasons}


def visible_gpus(platform: str, torch_module: Any = None) -> int | None:
    """Return the number of GPUs that torch may use here (visibility variables apply); None on the cpu platform."""
    if platform == "cpu":
        return None
    return int((torch_module or _import_torch()).cuda.device_count())


def visible_device(platform: str, torch_module: Any = None) -> str | None:
    """Return the short name (B200) of the GPUs that torch may use here; None on the cpu platform and for unknown ones.

    Raises HardwareError without torch.
    """
    if not visible_gpus(platform, torch_module):
        return None
    torch = torch_module or _import_torch()
    name, properties = torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0)
    _, _, device = _identified(name, properties, is_amd=platform == "amd")
    return short_name(device) if device else None


@dataclass(frozen=True)
class _Noted:
    """A value that could not be determined, or was inferred, with the reason."""

    reason: str
    value: str | None = None


def _import_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise HardwareError(f"torch: cannot be imported ({error}); install it as described in the README") from error


def _visible_platform(torch: Any) -> str:
    if torch.cuda.is_available():
        return "amd" if torch.version.hip else "nvd"
    # torch knows more kinds than CUDA and ROCm (XPU, MPS, Gaudi)
    if not torch.accelerator.is_available():
        return "cpu"
    kind = torch.accelerator.current_accelerator().type
    raise HardwareError(
        f"torch: got an accelerator of type {kind!r}, wanted an AMD or NVIDIA GPU; set PLATFORM=cpu to leave it unused"
    )


def _cpu_values() -> dict[str, Any]:
    no_gpu = _Noted("no GPU")
    return {
        "device_name": _cpu_name() or _Noted("neither /proc/cpuinfo nor Python names the processor"),
        "total_memory_gb": _gigabytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "gpu_cores": no_gpu,
        "software_stack": "cpu",
        "software_version": no_gpu,
        "driver_version": no_gpu,
    }


def _gpu_values(platform: str, torch: Any) -> dict[str, Any]:
    # one name stands for the job in every table, so that mixed GPUs cannot be measured
    names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
    if _visible_platform(torch) != platform or len(names) != 1:
        raise HardwareError(
            f"gpu_info: got {', '.join(names) or 'no GPU'}, wanted GPUs of one kind for platform {platform}; narrow "
            "CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES to them"
        )
    properties = torch.cuda.get_device_properties(0)
    is_amd = platform == "amd"
    # a driver may raise here after a complete measurement
    identified, reason = attempt(lambda: _identified(names[0], properties, is_amd=is_amd))
    name, taken_for, device = identified or (names[0], "", None)
    memory_gb = _gigabytes(properties.total_memory)
    values: dict[str, Any] = {
        "device_name": name or _Noted("torch gives no name"),
        "total_memory_gb": memory_gb,
        "software_stack": "rocm" if is_amd else "cuda",
        "software_version": (torch.version.hip if is_amd else torch.version.cuda) or _Noted("torch does not say"),
    }
    if taken_for:
        print(f"note: device: {taken_for}", file=sys.stderr)
        values["device_name"] = _Noted(taken_for, name)
    if device:
        values["gpu_cores"] = device.cores
    else:
        units = int(properties.multi_processor_count)
        unknown = f"no row of utils/hardware/devices.py is {name!r} with {units} compute units and {memory_gb} GB"
        values["gpu_cores"] = _Noted(reason or unknown)
    driver_version, reason = attempt(_amd_driver_version if is_amd else _nvidia_driver_version)
    values["driver_version"] = _Noted(reason) if reason else driver_version
    return values


def _identified(name: str, properties: Any, *, is_amd: bool) -> tuple[str, str, Device | None]:
    """Return the name of the board, what it was taken for by if the driver's name is a generic one, and its figures."""
    units, memory_gb = int(properties.multi_processor_count), _gigabytes(properties.total_memory)
    if not is_amd:
        # an unknown architecture is no row of the table either
        per_unit = CUDA_CORES_PER_SM.get((int(properties.major), int(properties.minor)))
        device = find_device(name, memory_gb, units * per_unit) if per_unit else None
        return name, "", device
    architecture, cores = str(getattr(properties, "gcnArchName", "")), units * STREAM_PROCESSORS_PER_CU
    board = recognised(name, architecture, memory_gb, cores)
    if board is None:
        return name, "", find_device(name, memory_gb, cores)
    taken_for = f"named {name!r}; taken for {board} by {architecture}, {units} compute units, {memory_gb} GB"
    return board, taken_for, find_device(board, memory_gb, cores)


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf8", errors="replace")
        model = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.MULTILINE)
        if model:  # ARM kernels give none
            return model[1].strip()
    return python_platform.processor()


def _nvidia_driver_version() -> str | _Noted:
    output = _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if isinstance(output, _Noted):
        return output
    versions = set(output.split())  # a line for each GPU
    if len(versions) != 1:
        return _Noted(f"nvidia-smi: got {output!r}, wanted one version")
    return versions.pop()


def _amd_driver_version(module_version: Path = Path("/sys/module/amdgpu/version")) -> str | _Noted:
    # The kernel's own amdgpu has no version file; AMD's packaged driver has.
    if module_version.exists():
        return module_version.read_text(encoding="utf8").strip()
    output = _run("rocm-smi", "--showdriverversion", "--json")
    if isinstance(output, _Noted):
        return output
    try:
        return str(json.loads(output)["system"]["Driver version"])
    except (ValueError, KeyError, TypeError):
        return _Noted(f"rocm-smi: got {output[:200]!r}, wanted JSON with system / Driver version")


def _run(*command: str) -> str | _Noted:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TOOL_TIMEOUT_SECONDS)
    except FileNotFoundError:
        return _Noted(f"{command[0]} is not installed")
    except (OSError, subprocess.SubprocessError) as error:
        return _Noted(f"{command[0]} failed: {error}")
    return done.stdout.strip()


def _gigabytes(size_bytes: int) -> float:
    return round(size_bytes / 1e9, 3)
