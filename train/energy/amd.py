"""AMD GPUs read through zeus and AMD SMI: energy counter and power by zeus, the rest by one table of amdsmi.

The counter times its resolution is in microjoules; firmware of the MI200 counts 32 bits of 15.3 uJ, which start again
after 66 kJ. Power is that of a socket: on an MI250 one die reports the power of both, and the other one 0 or "N/A"
(ml-energy/zeus pull request 203). The counter can be wrong where power is right (ROCm/amdsmi issue 38), so both are
kept and compared. Sources: zeus 0.16.0, zeus/device/gpu/amd.py; amdsmi_interface.py of ROCm 6.4 to 7.0.

Not used: zeus's `get_gpus`, which fails as a whole if one GPU has no counter and takes only numbers in
HIP_VISIBLE_DEVICES; its temperature, which it divides by 1,000 although amdsmi returns degrees since ROCm 6.0; and
amdsmi_get_violation_status, which sleeps 100 ms in each call.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from train.energy.gpu_reader import WRAP, Gpu, GpuFacts, ReaderError, Reading, in_one_line, normal, select
from train.machine.gpu_state import number

LIBRARY = "AMD SMI"
CLOCKS = ("current_gfxclks", "current_gfxclk", "average_gfxclk_frequency")
"""Keys of the table for the clock of the compute units; the first with a number counts."""
THROTTLE = {
    "prochot_residency_acc": "prochot",
    "ppt_residency_acc": "ppt",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "vr_thermal",
    "hbm_thm_residency_acc": "hbm_thermal",
}
"""Counters that grow while clocks are reduced, and the names that amd-smi prints for them."""
UNUSABLE = (KeyError, TypeError, ValueError)
"""Exceptions of zeus where amdsmi returns "N/A" in place of a number, or another version's keys."""
NO_LIBRARY = (ImportError, OSError, AttributeError, KeyError)
"""Exceptions of `import amdsmi` without libamd_smi.so, or with one of another version."""


class AmdGpu(Gpu):
    """One AMD GPU, or one die of a package with two."""

    FINAL = frozenset((2, 10))
    """AMDSMI_STATUS_NOT_SUPPORTED and NO_PERM. A value that is "N/A" now may be there the next time."""
    LOST = frozenset((34, 31))
    """AMDSMI_STATUS_DRIVER_NOT_LOADED and NOT_FOUND, amdsmi.h."""
    _before: Mapping[str, float] = {}

    def read(self) -> Reading:
        """Return the values now; raise GpuLostError if the driver or the device is gone."""
        gpu, value = self._device, self.value
        table = value("table", lambda: self._library.amdsmi_get_gpu_metrics_info(gpu.handle)) or {}
        return [
            number(value("counter_mj", gpu.get_total_energy_consumption)),
            number(value("instant_mw", gpu.get_instant_power_usage)),
            number(value("average_mw", gpu.get_average_power_usage)),
            _clock(table),
            _mean(table.get("current_uclk")),
            number(table.get("temperature_hotspot")),
            number(table.get("average_gfx_activity")),
            self._throttle(table),
        ]

    def _throttle(self, table: Mapping[str, Any]) -> list[str] | None:
        """Return the reasons whose counters have grown since the last reading; None if the device has none."""
        now = {}
        for key in THROTTLE:
            count = number(table.get(key))
            if count is not None:
                now[key] = count
        before, self._before = self._before, now
        if not now:
            return None
        # in the first reading nothing has grown yet
        return [THROTTLE[key] for key, count in now.items() if count > before.get(key, count)]


def _clock(table: Mapping[str, Any]) -> float | None:
    for key in CLOCKS:
        clock = _mean(table.get(key))
        if clock is not None:
            return clock
    return None


def open_gpus(bus_ids: list[str] | None, why_unknown: str, count: int) -> tuple[str, list[AmdGpu]]:
    """Return the names and versions of the libraries, and the GPUs of the job; raise ReaderError."""
    smi, zeus, base = _libraries()
    try:
        smi.amdsmi_init(smi.AmdSmiInitFlags.INIT_AMD_GPUS)
        handles = {}
        for handle in smi.amdsmi_get_processor_handles():
            handles[normal(smi.amdsmi_get_gpu_device_bdf(handle))] = handle
        chosen = select(handles, bus_ids, count, why_unknown, LIBRARY)
        # also of GPUs that the job does not use: a package may have a die in each
        packages = {bus_id: _package(smi, handle) or bus_id for bus_id, handle in handles.items()}
        dies = Counter(packages.values())
        gpus = []
        for bus_id, handle in chosen:
            # zeus opens a GPU by the number that HIP has for it
            gpu = zeus.AMDGPU(smi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"])
            # zeus counts GPUs by itself
            if normal(smi.amdsmi_get_gpu_device_bdf(gpu.handle)) != bus_id:
                raise ReaderError(f"zeus opened another GPU than the one at {bus_id}")
            package = packages[bus_id]
            facts = GpuFacts(bus_id, str(gpu.get_name()), package, dies[package], _wraps_mj(smi, handle))
            gpus.append(AmdGpu(facts, smi, gpu, (smi.AmdSmiException, base, *UNUSABLE)))
    except (smi.AmdSmiException, base) as error:
        raise ReaderError(
            f"{LIBRARY}: {in_one_line(error)}; amd-smi must work for this user: groups video and render"
        ) from error
    except (AttributeError, KeyError) as error:
        raise ReaderError(f"{LIBRARY} of ROCm 6.4 or later is needed to find the job's GPUs: {error}") from error
    return f"{LIBRARY}, zeus {version('zeus')}", gpus


def _libraries() -> tuple[Any, Any, type[Exception]]:
    try:
        import amdsmi
    except NO_LIBRARY as error:
        wanted = "install the one of this machine's ROCm: pip install ${ROCM_PATH:-/opt/rocm}/share/amd_smi"
        raise ReaderError(f"amdsmi cannot be imported ({type(error).__name__}: {error}); {wanted}") from error
    try:
        from zeus.device.gpu import amd as zeus
        from zeus.exception import ZeusBaseError
    except ImportError as error:
        raise ReaderError(f"{error}; ./shell/setup.sh installs zeus") from error
    return amdsmi, zeus, ZeusBaseError


def _package(smi: Any, handle: Any) -> str | None:
    """Return the serial number of the package, which its dies share; None if the device shows none."""
    serial = str(smi.amdsmi_get_gpu_asic_info(handle).get("asic_serial", "")).strip()
    # boards without a number show zeros
    if serial == "N/A" or not serial.strip("0xX"):
        return None
    return serial


def _wraps_mj(smi: Any, handle: Any) -> float | None:
    try:
        resolution = number(smi.amdsmi_get_energy_count(handle).get("counter_resolution"))
    except smi.AmdSmiException:
        return None
    return None if resolution is None else WRAP * resolution / 1e3


def _mean(value: Any) -> float | None:
    """Return a number, or the mean of the numbers in a list: a socket has several clocks of one kind."""
    numbers = [number(item) for item in (value if isinstance(value, list) else [value])]
    known = [item for item in numbers if item is not None]
    return statistics.fmean(known) if known else None
