"""PCI bus ids of the GPUs that a job uses, in the order of its ranks: CUDA or HIP is asked, no index is translated.

The indices of CUDA or HIP are not those of NVML or AMD SMI: CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER is
PCI_BUS_ID, HIP has an order of its own, and the `*_VISIBLE_DEVICES` variables hide and reorder both, by number or by
UUID. The PCI bus id is the same for all of them. The runtime is asked in a process that ends at once, because it would
keep the devices open. No context is made on a device.

Sources: CUDA Driver API, cuInit, cuDeviceGetCount, cuDeviceGetPCIBusId; HIP runtime API, hipGetDeviceCount,
hipDeviceGetPCIBusId.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from utils.arguments import Parser, run
from utils.settings.config import ROOT

TIMEOUT_SECONDS = 30.0
CHARACTERS = 64
_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")


class RuntimeUnknownError(RuntimeError):
    """CUDA or HIP could not be asked for the devices; the message contains the reason."""


def normal(bus_id: str | bytes) -> str:
    """Return a PCI address as `0000:17:00.0`; NVML writes the domain with eight digits. Raises ValueError."""
    text = (bus_id.decode("ascii") if isinstance(bus_id, bytes) else bus_id).strip("\0 \n").lower()
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"got {text!r}, wanted a PCI address such as 0000:17:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def of_job(platform: str, environ: Mapping[str, str]) -> list[str]:
    """Return the bus ids of the GPUs that a process with this environment sees; raise RuntimeUnknownError."""
    command = [sys.executable, "-m", "train.energy.bus_ids", "--platform", platform]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=dict(environ), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnknownError(f"the runtime did not answer: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeUnknownError(said[-1].removeprefix("error: "))
    return [normal(one) for one in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    """Print the bus ids as a JSON list."""
    parser = Parser(prog="python -m train.energy.bus_ids", description=__doc__)
    parser.add_argument("--platform", required=True, choices=("nvd", "amd"))
    options = parser.parse_args()
    try:
        print(json.dumps(_cuda() if options.platform == "nvd" else _hip()))
    except RuntimeUnknownError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _cuda() -> list[str]:
    cuda = _library("libcuda.so.1", "libcuda.so")
    _check("cuInit", cuda.cuInit(0))
    count = ctypes.c_int()
    _check("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))
    found = []
    for index in range(count.value):
        device, text = ctypes.c_int(), ctypes.create_string_buffer(CHARACTERS)
        _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), index))
        _check("cuDeviceGetPCIBusId", cuda.cuDeviceGetPCIBusId(text, CHARACTERS, device))
        found.append(text.value.decode("ascii"))
    return found


def _hip() -> list[str]:
    rocm = os.environ.get("ROCM_PATH", "/opt/rocm")  # AMD's image has it among the packages of its Python
    hip = _library(*_of_torch("libamdhip64.so"), "libamdhip64.so", f"{rocm}/lib/libamdhip64.so")
    count = ctypes.c_int()
    _check("hipGetDeviceCount", hip.hipGetDeviceCount(ctypes.byref(count)))
    found = []
    for index in range(count.value):
        text = ctypes.create_string_buffer(CHARACTERS)
        _check("hipDeviceGetPCIBusId", hip.hipDeviceGetPCIBusId(text, CHARACTERS, index))
        found.append(text.value.decode("ascii"))
    return found


def _of_torch(name: str) -> list[str]:
    """Return the path of a library that torch brings along; torch itself is not imported."""
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return [str(Path(folder, "lib", name)) for folder in folders or ()]


def _library(*names: str) -> ctypes.CDLL:
    problems = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
    raise RuntimeUnknownError(f"the runtime of the GPUs cannot be loaded ({problems[-1]})")


def _check(function: str, code: int) -> None:
    if code != 0:
        raise RuntimeUnknownError(f"{function} returned {code}")


if __name__ == "__main__":
    sys.exit(run(main))
