"""NVIDIA GPUs read through zeus and NVML: energy counter and power by zeus, the rest by nvidia-ml-py.

The energy counter counts mJ since the driver was loaded, for Volta and later. Sources: zeus 0.16.0,
zeus/device/gpu/nvidia.py; NVML API reference R580. zeus takes the numbers in CUDA_VISIBLE_DEVICES for those of NVML,
which they are not, so its `get_gpus` is not used: each GPU is opened by the index that NVML has for its bus id.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from typing import Any

from train.energy.gpu_reader import WRAP, Gpu, GpuFacts, ReaderError, Reading, normal, select
from train.machine.gpu_state import number
from train.machine.nvidia_smi import throttle_names

LIBRARY = "NVML"
TEMPERATURE_GPU = 0
"""NVML_TEMPERATURE_GPU."""


class NvidiaGpu(Gpu):
    """One NVIDIA GPU."""

    FINAL = frozenset((3, 4, 13))
    """NVML_ERROR_NOT_SUPPORTED, NO_PERMISSION and FUNCTION_NOT_FOUND."""
    LOST = frozenset((15, 1, 9))
    """NVML_ERROR_GPU_IS_LOST, UNINITIALIZED and DRIVER_NOT_LOADED."""

    def read(self) -> Reading:
        """Return the values now; raise GpuLostError if the GPU has fallen off the bus."""
        nvml, gpu, handle, value = self._library, self._device, self._device.handle, self.value
        # the function was renamed with driver 535
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        if reasons is None:
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return [
            number(value("counter_mj", gpu.get_total_energy_consumption)),
            number(value("instant_mw", gpu.get_instant_power_usage)),
            number(value("average_mw", gpu.get_average_power_usage)),
            number(value("sm_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            number(value("memory_clock_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            number(value("temperature_celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU))),
            number(value("gpu_use_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            value("throttle", lambda: list(throttle_names(hex(reasons(handle))) or ())),
        ]


def open_gpus(bus_ids: list[str] | None, why_unknown: str, count: int) -> tuple[str, list[NvidiaGpu]]:
    """Return the names and versions of the libraries, and the GPUs of the job; raise ReaderError."""
    try:
        import pynvml
        from zeus.device.gpu import nvidia as zeus
        from zeus.exception import ZeusBaseError
    except ImportError as error:
        raise ReaderError(f"{error}; ./shell/setup.sh installs zeus and nvidia-ml-py") from error
    errors = (pynvml.NVMLError, ZeusBaseError)
    try:
        pynvml.nvmlInit()
        chosen = select(_known(pynvml), bus_ids, count, why_unknown, LIBRARY)
        driver = pynvml.nvmlSystemGetDriverVersion()
        gpus = []
        for bus_id, index in chosen:
            gpu = zeus.NVIDIAGPU(index)
            # the counter is that of the board, whichever slice a job has
            _require_whole(pynvml, gpu.handle, bus_id)
            facts = GpuFacts(bus_id, str(gpu.get_name()), bus_id, 1, float(WRAP))
            gpus.append(NvidiaGpu(facts, pynvml, gpu, errors))
    except errors as error:
        raise ReaderError(f"{LIBRARY}: {error}; nvidia-smi must work for this user, also in the container") from error
    return f"{LIBRARY}, driver {driver}, zeus {version('zeus')}", gpus


def _known(nvml: Any) -> dict[str, int]:
    """Return NVML's index of each GPU by its bus id; one that does not answer may be of no concern to the job."""
    indices = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):
            bus_id = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(index)).busId
            indices[normal(bus_id)] = index
    return indices


def _require_whole(nvml: Any, handle: Any, bus_id: str) -> None:
    """Raise ReaderError for a GPU that is divided by MIG; boards without MIG do not know the question."""
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            why = "is divided by MIG; its power is that of all slices: nvidia-smi -mig 0"
            raise ReaderError(f"the GPU at {bus_id} {why}")
