"""NVIDIA GPUs read through zeus and NVML: energy counter and power by zeus, the rest by nvidia-ml-py.

The energy counter counts mJ since the driver was loaded, for Volta and later. Sources: zeus 0.16.0,
zeus/device/gpu/nvidia.py; NVML API reference R580. zeus takes the numbers in CUDA_VISIBLE_DEVICES for those of NVML,
which they are not, so its `get_gpus` is not used: each GPU is opened by the index that NVML has for its bus id.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from train.energy import bus_ids as addresses
from train.energy.gpu_reader import WRAP, Calls, GpuFacts, ReaderError, Reading, number, select
from train.machine.nvidia_smi import throttle_names

LIBRARY = "NVML"
FINAL = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND")
LOST = ("GPU_IS_LOST", "UNINITIALIZED", "DRIVER_NOT_LOADED")
"""Ends of the names of NVML's error codes."""
TEMPERATURE_GPU = 0
"""NVML_TEMPERATURE_GPU."""


class NvidiaGpu:
    """One NVIDIA GPU; `gpu` is its object in zeus."""

    def __init__(self, nvml: Any, gpu: Any, facts: GpuFacts, calls: Calls) -> None:
        self.facts = facts
        self._nvml, self._gpu, self._handle, self._calls = nvml, gpu, gpu.handle, calls

    @property
    def why(self) -> Mapping[str, str]:
        """The reasons for values that are None for good."""
        return self._calls.why

    def read(self) -> Reading:
        """Return the values now; raise GpuLostError if the GPU has fallen off the bus."""
        nvml, gpu, handle, value = self._nvml, self._gpu, self._handle, self._calls.value
        return [
            number(value("counter_mj", gpu.get_total_energy_consumption)),
            number(value("instant_mw", gpu.get_instant_power_usage)),
            number(value("average_mw", gpu.get_average_power_usage)),
            number(value("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            number(value("memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            number(value("temperature_celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU))),
            number(value("use_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            value("throttle", lambda: list(throttle_names(hex(_reasons(nvml)(handle))) or ())),
        ]


def open_gpus(bus_ids: list[str] | None, count: int, why_unknown: str) -> tuple[str, list[NvidiaGpu]]:
    """Return the name of the library and the GPUs of the job; raise ReaderError."""
    try:
        import pynvml
        from zeus.device.gpu import nvidia as zeus
    except ImportError as error:
        raise ReaderError(f"{error}; ./shell/setup.sh installs zeus and nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
        chosen = select(_known(pynvml), bus_ids, count, why_unknown, LIBRARY)
        driver = pynvml.nvmlSystemGetDriverVersion()
        gpus = [_opened(pynvml, zeus, index, bus_id) for bus_id, index in chosen]
    except (pynvml.NVMLError, *_zeus_errors()) as error:
        raise ReaderError(f"{LIBRARY}: {error}; nvidia-smi must work for this user, also in the container") from error
    return f"{LIBRARY}, driver {driver}", gpus


def _known(nvml: Any) -> dict[str, int]:
    """Return NVML's index of each GPU by its bus id; one that does not answer may be of no concern to the job."""
    found = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):
            bus_id = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(index)).busId
            found[addresses.normal(bus_id)] = index
    return found


def _opened(nvml: Any, zeus: Any, index: int, bus_id: str) -> NvidiaGpu:
    gpu = zeus.NVIDIAGPU(index)
    if _is_divided(nvml, gpu.handle):
        raise ReaderError(f"the GPU at {bus_id} is divided by MIG; its power is that of all slices: nvidia-smi -mig 0")
    facts = GpuFacts(bus_id, str(gpu.get_name()), bus_id, 1, float(WRAP))
    calls = Calls((nvml.NVMLError, *_zeus_errors()), _matches(nvml, LOST), _matches(nvml, FINAL))
    return NvidiaGpu(nvml, gpu, facts, calls)


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False  # boards without MIG
    return bool(current)


def _reasons(nvml: Any) -> Any:
    """Return the function for the reasons of reduced clocks; it was renamed with driver 535."""
    return getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or (
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )


def _zeus_errors() -> tuple[type[Exception], ...]:
    from zeus.exception import ZeusBaseError

    return (ZeusBaseError,)


def _matches(nvml: Any, names: tuple[str, ...]) -> Any:
    """Return a function that tells whether an error, or NVML's error behind one of zeus, has one of the codes."""
    codes = {getattr(nvml, f"NVML_ERROR_{name}") for name in names}

    def matches(error: Exception) -> bool:
        return any(getattr(one, "value", None) in codes for one in (error, error.__cause__))

    return matches
