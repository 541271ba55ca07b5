"""Stand-in for nvidia-ml-py with the functions, constants, units and errors that zeus 0.16 and the suite use.

Units as in NVML: mJ, mW, MHz, C. The index is that of PCI addresses. Source of the constants: nvml.h, R580.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import standin_machine as state

NVML_SUCCESS = 0
_ERRORS = (
    *("UNINITIALIZED", "INVALID_ARGUMENT", "NOT_SUPPORTED", "NO_PERMISSION", "ALREADY_INITIALIZED", "NOT_FOUND"),
    *("INSUFFICIENT_SIZE", "INSUFFICIENT_POWER", "DRIVER_NOT_LOADED", "TIMEOUT", "IRQ_ISSUE", "LIBRARY_NOT_FOUND"),
    *("FUNCTION_NOT_FOUND", "CORRUPTED_INFOROM", "GPU_IS_LOST", "RESET_REQUIRED", "OPERATING_SYSTEM"),
    *("LIB_RM_VERSION_MISMATCH", "IN_USE", "MEMORY", "NO_DATA"),
)
globals().update({f"NVML_ERROR_{name}": code for code, name in enumerate(_ERRORS, start=1)})
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_UNKNOWN = 3, 15, 999
NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT = 185, 186
NVML_POWER_SCOPE_GPU, NVML_POWER_SCOPE_MODULE, NVML_POWER_SCOPE_MEMORY = 0, 1, 2
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_TEMPERATURE_GPU = 0
NVML_DEVICE_ARCH_VOLTA = 5
NVML_FEATURE_ENABLED = 1


class NVMLError(Exception):
    """Error with NVML's code in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        known = {3: "Not Supported", 4: "Insufficient Permissions", 9: "Driver Not Loaded", 15: "GPU is lost"}
        return known.get(self.value, f"NVML error {self.value}")


def _refuse(code: int) -> Any:
    raise NVMLError(code)


def _reading(value: Any) -> Any:
    return _refuse(NVML_ERROR_NOT_SUPPORTED) if value == "N/A" else value


def _nvmlGetFunctionPointer(name: str) -> None:  # noqa: N802 (zeus knows the official package by it)
    _refuse(13)


def nvmlInit() -> None:  # noqa: N802
    state.MACHINE.open("nvmlInit", NVMLError)


def nvmlShutdown() -> None:  # noqa: N802
    """Do nothing."""


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    return "580.65.06"


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return len(state.MACHINE.boards)


def nvmlDeviceGetHandleByIndex(index: int) -> state.Board:  # noqa: N802
    return state.MACHINE.boards[index]


def _power(board: state.Board, field: int) -> SimpleNamespace:
    has_it = board.has_instant if field == NVML_FI_DEV_POWER_INSTANT else board.has_average
    value = SimpleNamespace(uiVal=round(1e3 * board.watts))
    return SimpleNamespace(nvmlReturn=NVML_SUCCESS if has_it else NVML_ERROR_NOT_SUPPORTED, value=value)


globals().update(
    state.functions(
        NVMLError,
        NVML_ERROR_GPU_IS_LOST,
        nvmlDeviceGetPciInfo=lambda board: SimpleNamespace(busId=f"0000{board.bus_id}".upper()),
        nvmlDeviceGetName=lambda board: board.name,
        nvmlDeviceGetC2cModeInfoV=lambda board: _refuse(NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetMigMode=lambda board: [int(board.is_divided)] * 2,
        nvmlDeviceGetTotalEnergyConsumption=lambda board: (
            int(1e3 * state.MACHINE.joules(board)) % 2**board.counter_bits
        ),
        nvmlDeviceGetFieldValues=lambda board, fields: [_power(board, name) for name, _ in fields],
        nvmlDeviceGetClockInfo=lambda board, kind: _reading(board.clock) if kind == NVML_CLOCK_SM else 2619,
        nvmlDeviceGetTemperature=lambda board, sensor: _reading(board.temperature),
        nvmlDeviceGetUtilizationRates=lambda board: SimpleNamespace(gpu=_reading(board.use), memory=40),
        nvmlDeviceGetCurrentClocksEventReasons=lambda board: 0x4,  # the software power cap
    )
)
