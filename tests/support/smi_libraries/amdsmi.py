"""Stand-in for AMD's amdsmi (ROCm 7.0) with the functions, keys, units and errors that zeus 0.16 and the suite use.

Units as in amdsmi: W, counts of `counter_resolution` uJ, MHz, C; "N/A" in place of a number that a device lacks.
Handles are in the order of PCI addresses, as `amd-smi` lists them. Source of the codes: amdsmi.h of ROCm 7.0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import standin_machine as state

RESOLUTION_UJ = 15.3
NOT_AVAILABLE = "N/A"


class AmdSmiException(Exception):  # noqa: N818
    """Base of all errors."""


class AmdSmiParameterException(AmdSmiException):
    """A handle or an argument of another type."""


class AmdSmiLibraryException(AmdSmiException):
    """Error of the C library."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = abs(err_code)

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | {self.get_error_info()}"

    def get_error_code(self) -> int:
        return self.err_code

    def get_error_info(self) -> str:
        known = {2: "NOT_SUPPORTED - Feature not supported", 10: "NO_PERM - Permission Denied"}
        return "AMDSMI_STATUS_" + known.get(self.err_code, f"{self.err_code} - Error")


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_CPUS = 1
    INIT_AMD_GPUS = 2


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


_handles: list[state.Handle] = []


def _board(handle: state.Handle, function: str) -> state.Board:
    if not isinstance(handle, state.Handle):
        raise AmdSmiParameterException(handle)
    return state.board_of(handle, function, AmdSmiLibraryException, lost=31)


def amdsmi_init(flag: AmdSmiInitFlags = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
    if not isinstance(flag, AmdSmiInitFlags):
        raise AmdSmiParameterException(flag)
    for board in state.MACHINE.boards:
        if "amdsmi_init" in board.faults:
            raise AmdSmiLibraryException(board.faults["amdsmi_init"])
    _handles[:] = [state.Handle(board) for board in state.MACHINE.boards]


def amdsmi_shut_down() -> None:
    _handles.clear()


def amdsmi_get_processor_handles() -> list[state.Handle]:
    return list(_handles)


def amdsmi_get_gpu_device_bdf(handle: state.Handle) -> str:
    return _board(handle, "amdsmi_get_gpu_device_bdf").bus_id


def amdsmi_get_gpu_enumeration_info(handle: state.Handle) -> dict[str, Any]:
    return {"hip_id": _board(handle, "amdsmi_get_gpu_enumeration_info").hip, "hip_uuid": "GPU-0"}


def amdsmi_get_gpu_asic_info(handle: state.Handle) -> dict[str, Any]:
    board = _board(handle, "amdsmi_get_gpu_asic_info")
    return {"market_name": board.name, "asic_serial": board.serial}


def amdsmi_get_power_info(handle: state.Handle) -> dict[str, Any]:
    board = _board(handle, "amdsmi_get_power_info")
    watts = round(board.watts)
    return {
        "current_socket_power": watts if board.has_instant else NOT_AVAILABLE,
        "average_socket_power": watts if board.has_average else NOT_AVAILABLE,
    }


def amdsmi_get_energy_count(handle: state.Handle) -> dict[str, Any]:
    board = _board(handle, "amdsmi_get_energy_count")
    counts = int(state.MACHINE.joules(board) * 1e6 / RESOLUTION_UJ) % 2**board.counter_bits
    return {"energy_accumulator": counts, "counter_resolution": RESOLUTION_UJ, "timestamp": 0}


def amdsmi_get_temp_metric(handle: state.Handle, sensor: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric) -> int:
    return _board(handle, "amdsmi_get_temp_metric").temperature  # degrees, which zeus divides by 1,000


def amdsmi_get_gpu_metrics_info(handle: state.Handle) -> dict[str, Any]:
    board = _board(handle, "amdsmi_get_gpu_metrics_info")
    return {
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
    }
