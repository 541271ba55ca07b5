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
_is_initialized = False


class NVMLError(Exception):
    """Error with NVML's code in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 4: "Insufficient Permissions", 9: "Driver Not Loaded", 15: "GPU is lost"}.get(
            self.value, f"NVML error {self.value}"
        )


def _nvmlGetFunctionPointer(name: str) -> None:  # noqa: N802 (zeus knows the official package by it)
    raise NVMLError(13)


def _board(handle: state.Handle, function: str) -> state.Board:
    if not _is_initialized:
        raise NVMLError(1)
    if not isinstance(handle, state.Handle):
        raise NVMLError(2)
    return state.board_of(handle, function, NVMLError, lost=15)


def _reading(value: Any) -> Any:
    if value == "N/A":
        raise NVMLError(3)
    return value


def nvmlInit() -> None:  # noqa: N802
    global _is_initialized
    for board in state.MACHINE.boards:
        if "nvmlInit" in board.faults:
            raise NVMLError(board.faults["nvmlInit"])
    _is_initialized = True


def nvmlShutdown() -> None:  # noqa: N802
    """Do nothing."""


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    return "580.65.06"


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return len(state.MACHINE.boards)


def nvmlDeviceGetHandleByIndex(index: int) -> state.Handle:  # noqa: N802
    if not 0 <= index < len(state.MACHINE.boards):
        raise NVMLError(2)
    return state.Handle(state.MACHINE.boards[index])


def nvmlDeviceGetPciInfo(handle: state.Handle) -> SimpleNamespace:  # noqa: N802
    domain, rest = _board(handle, "nvmlDeviceGetPciInfo").bus_id.split(":", 1)
    return SimpleNamespace(busId=f"0000{domain}:{rest}".upper())


def nvmlDeviceGetName(handle: state.Handle) -> str:  # noqa: N802
    return _board(handle, "nvmlDeviceGetName").name


def nvmlDeviceGetC2cModeInfoV(handle: state.Handle) -> None:  # noqa: N802
    _board(handle, "nvmlDeviceGetC2cModeInfoV")
    raise NVMLError(3)


def nvmlDeviceGetMigMode(handle: state.Handle) -> list[int]:  # noqa: N802
    divided = int(_board(handle, "nvmlDeviceGetMigMode").is_divided)
    return [divided, divided]


def nvmlDeviceGetTotalEnergyConsumption(handle: state.Handle) -> int:  # noqa: N802
    board = _board(handle, "nvmlDeviceGetTotalEnergyConsumption")
    return int(1e3 * state.MACHINE.joules(board)) % 2**board.counter_bits


def nvmlDeviceGetFieldValues(handle: state.Handle, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:  # noqa: N802
    board = _board(handle, "nvmlDeviceGetFieldValues")
    has = {NVML_FI_DEV_POWER_AVERAGE: board.has_average, NVML_FI_DEV_POWER_INSTANT: board.has_instant}
    return [
        SimpleNamespace(
            nvmlReturn=NVML_SUCCESS if has[name] else NVML_ERROR_NOT_SUPPORTED,
            value=SimpleNamespace(uiVal=round(1e3 * board.watts)),
        )
        for name, _ in fields
    ]


def nvmlDeviceGetClockInfo(handle: state.Handle, kind: int) -> int:  # noqa: N802
    clock = _reading(_board(handle, "nvmlDeviceGetClockInfo").clock)
    return clock if kind == NVML_CLOCK_SM else 2619


def nvmlDeviceGetTemperature(handle: state.Handle, sensor: int) -> int:  # noqa: N802
    return _reading(_board(handle, "nvmlDeviceGetTemperature").temperature)


def nvmlDeviceGetUtilizationRates(handle: state.Handle) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(gpu=_reading(_board(handle, "nvmlDeviceGetUtilizationRates").use), memory=40)


def nvmlDeviceGetCurrentClocksEventReasons(handle: state.Handle) -> int:  # noqa: N802
    _board(handle, "nvmlDeviceGetCurrentClocksEventReasons")
    return 0x4  # the software power cap
