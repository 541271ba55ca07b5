"""Table of accelerators with known peaks: datasheet numbers, each with its source, and the names that drivers report.

The rows are in boards_nvidia.py and boards_amd.py. Every row is one whole board; `find_device` returns the part that is
one torch device. An unknown device has no row and no peak: with the peak of another chip its utilization would look
right and be wrong. A device that is announced and not sold yet has no row either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from utils.hardware.boards_amd import AMD
from utils.hardware.boards_nvidia import NVIDIA
from utils.hardware.device import NUMBERS, Device

__all__ = [
    "DEVICES",
    "MEMORY_TOLERANCE",
    "NUMBERS",
    "SHORT_NAMES",
    "Device",
    "find_device",
    "named",
    "recognised",
    "short_name",
]

MEMORY_TOLERANCE = (0.95, 1.08)
"""Range of reported over marketed memory: boards are sold in GB, built in GiB (1.0737 GB), and drivers reserve some."""

DEVICES: tuple[Device, ...] = (*NVIDIA, *AMD)
_BY_NAME = {board.name: board for board in DEVICES}
SHORT_NAMES: Mapping[str, Device] = {
    short: _BY_NAME[name]
    for short, name in {
        "A100": "NVIDIA A100 SXM 80GB",
        "H20": "NVIDIA H20 96GB",
        "H100": "NVIDIA H100 SXM 80GB",
        "H200": "NVIDIA H200 SXM 141GB",
        "GH200": "NVIDIA GH200 144GB",
        "L40S": "NVIDIA L40S 48GB",
        "B200": "NVIDIA B200 180GB",
        "B300": "NVIDIA B300 270GB",
        "GB200": "NVIDIA GB200 186GB",
        "GB300": "NVIDIA GB300 279GB",
        "MI210": "AMD Instinct MI210",
        "MI250": "AMD Instinct MI250",
        "MI250X": "AMD Instinct MI250X",
        "MI300A": "AMD Instinct MI300A",
        "MI300X": "AMD Instinct MI300X",
        "MI325X": "AMD Instinct MI325X",
        "MI350X": "AMD Instinct MI350X",
        "MI355X": "AMD Instinct MI355X",
    }.items()
}
"""The board that a short name means: that of machines with eight where there are several, with the larger memory."""


GENERIC = ("", "amd radeon graphics", "amd instinct")
"""Names, in small letters, that AMD's driver gives to boards that its list of names (libdrm, amdgpu.ids) does not have,
or that a container cannot read."""


def recognised(name: str, architecture: str, total_memory_gb: float, cores: int) -> str | None:
    """Return the usual name of the one AMD board with this architecture, memory and number of cores.

    `architecture` may have features after a colon, as in torch's gcnArchName. None for a name that is not generic, and
    where no board, or more than one, fits.
    """
    if " ".join(name.split()).casefold() not in GENERIC:
        return None
    parts = [(board, _one_torch_device(board)) for board in AMD if board.architecture == architecture.partition(":")[0]]
    fitting = [board for board, part in parts if part.cores == cores and _fits_memory(part, total_memory_gb)]
    return fitting[0].names[0] if len(fitting) == 1 else None


def find_device(name: str, total_memory_gb: float | None = None, cores: int | None = None) -> Device | None:
    """Return the figures of the torch device that reports `name`, or None if it is unknown.

    The whole name must match (a GH200 is not an H200, a MIG slice not an H100), and so must `total_memory_gb` (1 GB =
    1e9 bytes) and `cores` if they are given: a partition of an MI300X keeps its name and has less of both.
    "AMD Instinct MI300X VF" is a virtual function, which may be the whole board or part of one: memory must be given.
    "AMD Instinct MI250X / MI250" is the driver's name of both boards; their memory is equal and an MI250 has 104
    compute units a die instead of 110, so `cores` must be given.
    MI250X and MI250 are two dies, and torch shows each as a device: the function returns one die, with half of every
    number of the board, also of its power. A GB200 or GB300 is one of the GPUs of a superchip, as torch shows it.
    """
    wanted = " ".join(name.split()).casefold().removeprefix("nvidia ")
    for board in DEVICES:
        if wanted in _comparable(board.names):
            is_proven = True
        elif wanted in _comparable(board.names_with_memory):
            is_proven = total_memory_gb is not None
        elif wanted in _comparable(board.names_with_cores):
            is_proven = cores is not None
        else:
            continue
        device = _one_torch_device(board)
        fits_memory = total_memory_gb is None or _fits_memory(device, total_memory_gb)
        if is_proven and fits_memory and cores in (None, device.cores):
            return device
    return None


def named(name: str) -> Device | None:
    """Return the torch device of a short name, a row's name or a driver's name; None if the table has none."""
    wanted = " ".join(name.split()).casefold()
    by_name = {short.casefold(): board for short, board in SHORT_NAMES.items()}
    by_name |= {board.name.casefold(): board for board in DEVICES}
    return _one_torch_device(by_name[wanted]) if wanted in by_name else find_device(name)


def short_name(device: Device) -> str | None:
    """Return the short name of a torch device; None if it has none, as the PCIe boards."""
    return next((short for short, board in SHORT_NAMES.items() if _one_torch_device(board) == device), None)


def _comparable(names: tuple[str, ...]) -> set[str]:
    return {name.casefold().removeprefix("nvidia ") for name in names}  # drivers before 2021 omit the vendor


def _fits_memory(device: Device, total_memory_gb: float) -> bool:
    low, high = MEMORY_TOLERANCE
    return low * device.memory_gb <= total_memory_gb <= high * device.memory_gb


def _one_torch_device(board: Device) -> Device:
    parts = board.torch_devices_per_board
    if parts == 1:
        return board
    return replace(
        board,
        name=f"{board.name} (one of {parts} dies)",
        memory_gb=board.memory_gb / parts,
        memory_bandwidth_gb_per_second=board.memory_bandwidth_gb_per_second / parts,
        dense_bf16_tflops=board.dense_bf16_tflops / parts,
        dense_fp8_tflops=_part(board.dense_fp8_tflops, parts),
        dense_fp4_tflops=_part(board.dense_fp4_tflops, parts),
        board_power_watts=board.board_power_watts / parts,
        cores=board.cores // parts,
    )


def _part(whole: float | None, parts: int) -> float | None:
    return None if whole is None else whole / parts
