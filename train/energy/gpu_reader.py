"""One GPU as the sampler sees it, in one form for both vendors: what a reading holds, and errors that stay errors.

A value that a device does not report is None, and `why` has the reason, once for each value. It is never 0.

GPUs are named by their PCI bus ids, in the order of the job's ranks: CUDA or HIP is asked, no index is translated. The
indices of CUDA or HIP are not those of NVML or AMD SMI: CUDA puts the fastest GPU first unless CUDA_DEVICE_ORDER is
PCI_BUS_ID, HIP has an order of its own, and the `*_VISIBLE_DEVICES` variables hide and reorder both, by number or by
UUID. The PCI bus id is the same for all of them. The runtime is asked in a process that ends at once, because it would
keep the devices open. No context is made on a device.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from train.job import processes
from utils.arguments import Parser, refusing, run
from utils.settings.config import ROOT

FIELDS = (
    "counter_mj",
    "instant_mw",
    "average_mw",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_celsius",
    "gpu_use_percent",
    "throttle",
)
"""Values of a reading, in the order of the sample file: energy counter in mJ, power in mW (now, and averaged by the
device), clocks in MHz, temperature in C, use in percent, and the reasons for reduced clocks as a list of names."""
WRAP = 2**32
"""Counters of 32 bits start again at 0 here."""
TIMEOUT_SECONDS = 30.0
CHARACTERS = 64
FUNCTIONS = {
    "nvd": ("cuDeviceGetCount", "cuDeviceGetPCIBusId"),
    "amd": ("hipGetDeviceCount", "hipDeviceGetPCIBusId"),
}
"""Functions of CUDA's driver API and of the HIP runtime API for the number of devices and the PCI bus id of one."""
_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")


class ReaderError(RuntimeError):
    """The GPUs of the job, or its processors, cannot be read at all; the message has the reason and a known remedy."""


class GpuLostError(RuntimeError):
    """A GPU that was read before does not answer any more."""


@dataclass(frozen=True)
class GpuFacts:
    """Facts about one GPU that do not change while it is sampled."""

    bus_id: str
    name: str
    package: str
    """Equal for the dies of one package, which share one power supply."""
    package_dies: int
    """Number of devices of this package on the machine, whether the job uses them or not."""
    counter_wraps_mj: float | None
    """Value at which a 32-bit counter would start again, mJ."""


Reading = list[Any]
"""The values of FIELDS."""


class Gpu(ABC):
    """A GPU that is read again and again; a call that the device refuses for good is not repeated."""

    FINAL: frozenset[int]
    """Codes of errors that will come again: not supported, or no permission."""
    LOST: frozenset[int]
    """Codes of errors after which the device or the driver is gone."""

    def __init__(self, facts: GpuFacts, library: Any, device: Any, errors: tuple[type[Exception], ...]) -> None:
        """`device` is its object in zeus, `errors` are the exceptions of the vendor's library and of zeus."""
        self.facts, self._library, self._device, self._errors = facts, library, device, errors
        self.why: dict[str, str] = {}
        """The reasons for values that are None for good, by field."""

    @abstractmethod
    def read(self) -> Reading:
        """Return the values now; raise GpuLostError if the device is gone."""

    def value(self, name: str, call: Callable[[], Any]) -> Any:
        """Return the value of a call; None if it fails. Raises GpuLostError if the device is gone."""
        # asking again for what a device does not have costs time in every sample
        if name in self.why:
            return None
        try:
            return call()
        except self._errors as error:
            # AMD SMI has a function for the code, NVML an attribute; zeus wraps the error of either
            codes = set()
            for raised in (error, error.__cause__):
                get_code = getattr(raised, "get_error_code", None)
                codes.add(get_code() if get_code else getattr(raised, "value", None))
            if codes & self.LOST:
                raise GpuLostError(f"the GPU is lost: {in_one_line(error)}") from error
            if codes & self.FINAL:
                self.why[name] = f"{type(error).__name__}: {in_one_line(error)}"
            return None


def in_one_line(error: Exception) -> str:
    """Return the text of an error without line breaks."""
    return " ".join(str(error).split())


def select(
    known: Mapping[str, Any], bus_ids: list[str] | None, count: int, why_unknown: str, library: str
) -> list[tuple[str, Any]]:
    """Return bus id and entry of the `count` GPUs of a job; raise ReaderError.

    `known` has the library's devices by bus id, `bus_ids` those of the runtime in the order of the ranks. If the
    runtime is unknown, the order does not matter only where the job uses every GPU of the machine.
    """
    if bus_ids is None:
        # the sum is the same whatever the order
        if len(known) == count:
            return sorted(known.items())
        raise ReaderError(
            f"it is unknown which {count} of the {len(known)} GPUs of {library} the job uses: {why_unknown}"
        )
    if len(bus_ids) < count:
        raise ReaderError(f"the runtime shows {len(bus_ids)} GPUs, and the job has {count} ranks here")
    used = bus_ids[:count]
    missing = [bus_id for bus_id in used if bus_id not in known]
    if missing:
        raise ReaderError(f"{library} does not show the GPU at {', '.join(missing)}, which the job uses")
    return [(bus_id, known[bus_id]) for bus_id in used]


def normal(bus_id: str | bytes) -> str:
    """Return a PCI address as `0000:17:00.0`; NVML writes the domain with eight digits. Raises ValueError."""
    if isinstance(bus_id, bytes):
        bus_id = bus_id.decode("ascii")
    text = bus_id.strip("\0 \n").lower()
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"got {text!r}, wanted a PCI address such as 0000:17:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def bus_ids_of_job(platform: str, environ: Mapping[str, str]) -> tuple[list[str] | None, str]:
    """Return the bus ids of the GPUs that a process with this environment sees; None and why where it does not say."""
    # in a process of its own: the runtime keeps devices open, and reads its variables only once
    command = [sys.executable, "-m", "train.energy.gpu_reader", "--platform", platform]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            preexec_fn=processes.tied(),
        )
        if done.returncode == 0:
            return [normal(bus_id) for bus_id in json.loads(done.stdout.splitlines()[-1])], ""
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return None, f"the runtime did not answer: {error}"
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return None, said[-1].removeprefix("error: ")


@refusing((), failed=(ReaderError,))
def main() -> int:
    """Print the bus ids as a JSON list."""
    options = {"--platform": {"required": True, "choices": FUNCTIONS}}
    parser = Parser(options, prog="python -m train.energy.gpu_reader", description=main.__doc__)
    print(json.dumps(list(_bus_ids(parser.parse_args().platform))))
    return 0


def _bus_ids(platform: str) -> Iterator[str]:
    """Ask CUDA or HIP in this process."""
    runtime = _library(platform)

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(runtime, name)(*arguments):
            raise ReaderError(f"{name} returned {code}")

    count = ctypes.c_int()
    get_count, get_bus_id = FUNCTIONS[platform]
    if platform == "nvd":
        call("cuInit", 0)
    call(get_count, ctypes.byref(count))
    for index in range(count.value):
        device, text = ctypes.c_int(index), ctypes.create_string_buffer(CHARACTERS)
        if platform == "nvd":
            call("cuDeviceGet", ctypes.byref(device), index)
        call(get_bus_id, text, CHARACTERS, device)
        yield text.value.decode("ascii")


def _library(platform: str) -> ctypes.CDLL:
    """Load the driver of CUDA or the runtime of HIP; AMD's image has HIP among the packages of its Python."""
    rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
    names = ["libcuda.so.1", "libcuda.so"]
    if platform == "amd":
        names = ["libamdhip64.so", f"{rocm}/lib/libamdhip64.so"]
        torch = importlib.util.find_spec("torch")  # not imported
        if torch is not None and torch.submodule_search_locations:
            names = [f"{folder}/lib/libamdhip64.so" for folder in torch.submodule_search_locations] + names
    problem = ""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problem = str(error)
    raise ReaderError(f"the runtime of the GPUs cannot be loaded ({problem})")


if __name__ == "__main__":
    sys.exit(run(main))
