"""Table of accelerators with known peaks: datasheet numbers, each with its source, and the names that drivers report.

The rows are in boards.json; docs/extending.md describes an entry. Every row is one whole board; `find_device` returns
the part that is one torch device. An unknown device has no row and no peak: with the peak of another chip its
utilization would look right and be wrong. A device that is announced and not sold yet has no row either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

NUMBERS = (
    "memory_gb",
    "memory_bandwidth_gb_per_second",
    "dense_bf16_tflops",
    "dense_fp8_tflops",
    "dense_fp4_tflops",
    "board_power_watts",
    "cores",
)
BYTES_PER_GB, MIB = 1e9, 1 << 20
MEMORY_TOLERANCE = (0.92, 1.08)
"""Range of reported memory over that of the table: torch leaves out what the driver reserves (0.4 % of an H200), some
logs call GiB GB (0.931), and a board of which only the datasheet is known is built in GiB (1.0737)."""


@dataclass(frozen=True)
class Device:
    """One board by its datasheet; `sources` names the source of each of NUMBERS, with its year and address.

    `memory_gb` is what the board's driver reports, GB (1e9 bytes); where no report of it is known, as `sources` shows,
    it is the datasheet's number, which is up to 7 % lower. Peaks are dense: NVIDIA's datasheets since Hopper print the
    figure with 2:4 sparsity, twice the dense one; it is halved in the rows, as their sources state. `dense_fp8_tflops`
    and `dense_fp4_tflops` are None if the hardware lacks the format. `board_power_watts` is the highest value that the
    vendor states; a machine may be configured lower. `names` are driver names of this board only. Drivers use
    `names_with_memory` also for a part of it, and `names_with_cores` also for another board of equal memory: these
    names match only together with the number that distinguishes them.
    """

    name: str
    names: tuple[str, ...]
    memory_gb: float
    memory_bandwidth_gb_per_second: float
    dense_bf16_tflops: float
    dense_fp8_tflops: float | None
    dense_fp4_tflops: float | None
    board_power_watts: float
    cores: int
    core_kind: str
    sources: Mapping[str, str] = field(hash=False)
    names_with_memory: tuple[str, ...] = ()
    names_with_cores: tuple[str, ...] = ()
    torch_devices_per_board: int = 1
    architecture: str | None = None
    """Target name of AMD's compiler, `gfx942`; None for NVIDIA."""


def _board(row: Mapping[str, Any], documents: Mapping[str, str]) -> Device:
    given: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in row.items():
        if key in NUMBERS:
            given[key], source = value
            sources[key] = source.format_map(documents)
        elif key not in ("driver_memory_mib", "remark"):
            given[key] = tuple(value) if isinstance(value, list) else value
    if "driver_memory_mib" in row:  # what a driver reports is worth more than the datasheet
        size, source = row["driver_memory_mib"]
        given["memory_gb"] = size * MIB / BYTES_PER_GB
        sources["memory_gb"] = source.format_map(documents)
    return Device(sources=sources, **given)


_TABLE = json.loads(Path(__file__).with_name("boards.json").read_text(encoding="utf8"))
DEVICES: tuple[Device, ...] = tuple(_board(row, _TABLE["documents"]) for row in _TABLE["boards"])
_BY_NAME = {board.name: board for board in DEVICES}
SHORT_NAMES: Mapping[str, Device] = {short: _BY_NAME[name] for short, name in _TABLE["short_names"].items()}
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
    family = architecture.partition(":")[0]
    fitting = []
    for board in DEVICES:
        device = _one_torch_device(board)
        if board.architecture == family and device.cores == cores and _fits_memory(device, total_memory_gb):
            fitting.append(board)
    return fitting[0].names[0] if len(fitting) == 1 else None


@lru_cache(maxsize=256)  # a report asks the same of every run
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
    wanted = _without_vendor(" ".join(name.split()))
    for board in DEVICES:
        # a name that several boards share counts only with the number that tells them apart
        names = board.names
        if total_memory_gb is not None:
            names += board.names_with_memory
        if cores is not None:
            names += board.names_with_cores
        if wanted not in [_without_vendor(name) for name in names]:
            continue
        device = _one_torch_device(board)
        fits_memory = total_memory_gb is None or _fits_memory(device, total_memory_gb)
        if fits_memory and cores in (None, device.cores):
            return device
    return None


def named(name: str) -> Device | None:
    """Return the torch device of a short name, a row's name or a driver's name; None if the table has none."""
    wanted = " ".join(name.split()).casefold()
    by_name = {short.casefold(): board for short, board in SHORT_NAMES.items()}
    # after the short names, which may not hide the full one
    by_name |= {board.name.casefold(): board for board in DEVICES}
    if wanted in by_name:
        return _one_torch_device(by_name[wanted])
    return find_device(name)


def short_name(device: Device) -> str | None:
    """Return the short name of a torch device; None if it has none, as the PCIe boards."""
    for short, board in SHORT_NAMES.items():
        if _one_torch_device(board) == device:
            return short
    return None


def _without_vendor(name: str) -> str:
    return name.casefold().removeprefix("nvidia ")  # drivers before 2021 omit the vendor


def _fits_memory(device: Device, total_memory_gb: float) -> bool:
    low, high = MEMORY_TOLERANCE
    return low * device.memory_gb <= total_memory_gb <= high * device.memory_gb


def _one_torch_device(board: Device) -> Device:
    parts = board.torch_devices_per_board
    if parts == 1:
        return board
    shares: dict[str, Any] = {}
    for number in NUMBERS:
        value = getattr(board, number)
        if value is not None:
            shares[number] = value / parts
    # a whole number again
    shares["cores"] = board.cores // parts
    return replace(board, name=f"{board.name} (one of {parts} dies)", **shares)
