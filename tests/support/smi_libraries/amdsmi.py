"""Stand-in for AMD's amdsmi (ROCm 7.0) with the functions, keys, units and errors that zeus 0.16 and the suite use.

Units as in amdsmi: W, counts of `counter_resolution` uJ, MHz, C; "N/A" in place of a number that a device lacks.
Handles are in the order of PCI addresses, as `amd-smi` lists them. Source of the codes: amdsmi.h of ROCm 7.0.
"""

from __future__ import annotations

from enum import IntEnum

import standin_machine as state

RESOLUTION_UJ = 15.3
NOT_AVAILABLE = "N/A"
AmdSmiInitFlags = IntEnum("AmdSmiInitFlags", {"INIT_AMD_CPUS": 1, "INIT_AMD_GPUS": 2})
AmdSmiTemperatureType = IntEnum("AmdSmiTemperatureType", {"EDGE": 0, "HOTSPOT": 1})
AmdSmiTemperatureMetric = IntEnum("AmdSmiTemperatureMetric", {"CURRENT": 0})


class AmdSmiException(Exception):  # noqa: N818
    """Base of all errors."""


class AmdSmiLibraryException(AmdSmiException):
    """Error of the C library."""

    def get_error_code(self) -> int:
        return abs(self.args[0])

    def get_error_info(self) -> str:
        known = {
            2: "NOT_SUPPORTED - Feature not supported",
            10: "NO_PERM - Permission Denied",
            31: "NOT_FOUND - Device Not found",
        }
        return f"AMDSMI_STATUS_{known[self.get_error_code()]}"

    def __str__(self) -> str:
        return f"Error code:\n\t{self.get_error_code()} | {self.get_error_info()}"


def amdsmi_init(flag: AmdSmiInitFlags = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
    state.MACHINE.open("amdsmi_init", AmdSmiLibraryException)


def amdsmi_shut_down() -> None:
    """Do nothing."""


def amdsmi_get_processor_handles() -> list[state.Board]:
    return list(state.MACHINE.boards)


globals().update(
    state.functions(
        AmdSmiLibraryException,
        31,
        amdsmi_get_gpu_device_bdf=lambda board: board.bus_id,
        amdsmi_get_gpu_enumeration_info=lambda board: {"hip_id": board.hip, "hip_uuid": "GPU-0"},
        amdsmi_get_gpu_asic_info=lambda board: {"market_name": board.name, "asic_serial": board.serial},
        amdsmi_get_power_info=lambda board: {
            "current_socket_power": round(board.watts) if board.has_instant else NOT_AVAILABLE,
            "average_socket_power": round(board.watts) if board.has_average else NOT_AVAILABLE,
        },
        amdsmi_get_energy_count=lambda board: {
            "energy_accumulator": int(state.MACHINE.joules(board) * 1e6 / RESOLUTION_UJ) % 2**board.counter_bits,
            "counter_resolution": RESOLUTION_UJ,
            "timestamp": 0,
        },
        # degrees, which zeus divides by 1,000
        amdsmi_get_temp_metric=lambda board, sensor, metric: board.temperature,
        amdsmi_get_gpu_metrics_info=lambda board: {
            "temperature_hotspot": board.temperature,
            "average_gfx_activity": board.use,
            "current_gfxclk": board.clock,
            "current_gfxclks": [board.clock] * 4 + [NOT_AVAILABLE] * 4,
            "current_uclk": NOT_AVAILABLE if board.clock == NOT_AVAILABLE else 1300,
            "prochot_residency_acc": 7,
            "ppt_residency_acc": int(1e3 * state.MACHINE.now()),
            "socket_thm_residency_acc": 0,
            "vr_thm_residency_acc": NOT_AVAILABLE,
            "hbm_thm_residency_acc": 0,
        },
    )
)
