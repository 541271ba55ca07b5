"""Table of accelerators with known peaks: datasheet numbers, each with its source, and the names that drivers report.

Peaks are dense. NVIDIA's datasheets since Hopper print the figure with 2:4 sparsity, twice the dense one; it is halved
here, as its source states. Every row is one whole board; `find_device` returns the part that is one torch device.
An unknown device has no row and no peak: with the peak of another chip its utilization would look right and be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NUMBERS = (
    "memory_gb",
    "memory_bandwidth_gb_per_second",
    "dense_bf16_tflops",
    "dense_fp8_tflops",
    "board_power_watts",
    "cores",
)
MEMORY_TOLERANCE = (0.95, 1.08)
"""Range of reported over marketed memory: boards are sold in GB, built in GiB (1.0737 GB), and drivers reserve some."""


@dataclass(frozen=True)
class Device:
    """One board by its datasheet; `sources` names the datasheet of each of NUMBERS.

    `memory_gb` is the marketed number. `dense_fp8_tflops` is None if the hardware has no FP8. `board_power_watts` is
    the highest value that the vendor states; a machine may be configured lower. `names` are driver names of this board
    only. Drivers use `names_with_memory` also for a part of it, and `names_with_cores` also for another board of equal
    memory: these names match only together with the number that distinguishes them.
    """

    name: str
    names: tuple[str, ...]
    memory_gb: float
    memory_bandwidth_gb_per_second: float
    dense_bf16_tflops: float
    dense_fp8_tflops: float | None
    board_power_watts: float
    cores: int
    core_kind: str
    sources: Mapping[str, str] = field(hash=False)
    names_with_memory: tuple[str, ...] = ()
    names_with_cores: tuple[str, ...] = ()
    torch_devices_per_board: int = 1


def find_device(name: str, total_memory_gb: float | None = None, cores: int | None = None) -> Device | None:
    """Return the figures of the torch device that reports `name`, or None if it is unknown.

    The whole name must match (a GH200 is not an H200, a MIG slice not an H100), and so must `total_memory_gb` (1 GB =
    1e9 bytes) and `cores` if they are given: a partition of an MI300X keeps its name and has less of both.
    "AMD Instinct MI300X VF" is a virtual function, which may be the whole board or part of one: memory must be given.
    "AMD Instinct MI250X / MI250" is the driver's name of both boards; their memory is equal and an MI250 has 104
    compute units a die instead of 110, so `cores` must be given.
    The MI250X is two dies, and torch shows each as a device: the function returns one die, with half of every number of
    the board, also of its power.
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
        return device if is_proven and fits_memory and cores in (None, device.cores) else None
    return None


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
        dense_fp8_tflops=None if board.dense_fp8_tflops is None else board.dense_fp8_tflops / parts,
        board_power_watts=board.board_power_watts / parts,
        cores=board.cores // parts,
    )


def _sources(datasheet: str, **exceptions: str) -> dict[str, str]:
    return {number: exceptions.get(number, datasheet) for number in NUMBERS}


def _peaks(source: str) -> dict[str, str]:
    return {"dense_bf16_tflops": source, "dense_fp8_tflops": source}


_CUDA, _STREAM = "CUDA cores", "stream processors"
_HALVED = "with-sparsity figure halved"
_HOPPER_PAPER = "NVIDIA H100 Tensor Core GPU Architecture white paper (2022)"
_HOPPER_SMS = f"{_HOPPER_PAPER}: 128 CUDA cores an SM; 132 SMs, as the driver reports"
_AMPERE_PAPER = "NVIDIA A100 Tensor Core GPU Architecture white paper (2020)"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet (2021)"
_H100_SHEET = "NVIDIA H100 Tensor Core GPU datasheet (2022)"
_H100_NVL_SHEET = "NVIDIA H100 Tensor Core GPU datasheet (2024), H100 NVL column"
_H200_SHEET = "NVIDIA H200 Tensor Core GPU datasheet (2024)"
_BLACKWELL_SHEET = "NVIDIA Blackwell datasheet (2025), HGX B200 column"
_MI355X_SHEET = "AMD Instinct MI355X GPU brochure (2025)"
_CDNA4_PAPER = "AMD CDNA 4 Architecture white paper (2025)"

_A100_SXM_40 = Device(
    name="NVIDIA A100 SXM 40GB",
    names=("NVIDIA A100-SXM4-40GB",),
    memory_gb=40.0,
    memory_bandwidth_gb_per_second=1555.0,
    dense_bf16_tflops=312.0,
    dense_fp8_tflops=None,
    board_power_watts=400.0,
    cores=6912,
    core_kind=_CUDA,
    sources=_sources(_A100_SHEET, dense_fp8_tflops=f"{_AMPERE_PAPER}: no FP8", cores=_AMPERE_PAPER),
)
_A100_SXM_80 = replace(
    _A100_SXM_40,
    name="NVIDIA A100 SXM 80GB",
    names=("NVIDIA A100-SXM4-80GB",),
    memory_gb=80.0,
    memory_bandwidth_gb_per_second=2039.0,
)
_A100_PCIE_40 = replace(
    _A100_SXM_40, name="NVIDIA A100 PCIe 40GB", names=("NVIDIA A100-PCIE-40GB",), board_power_watts=250.0
)
_A100_PCIE_80 = replace(
    _A100_SXM_80,
    name="NVIDIA A100 PCIe 80GB",
    names=("NVIDIA A100 80GB PCIe",),
    memory_bandwidth_gb_per_second=1935.0,
    board_power_watts=300.0,
)
_H100_SXM = Device(
    name="NVIDIA H100 SXM 80GB",
    names=("NVIDIA H100 80GB HBM3",),
    memory_gb=80.0,
    memory_bandwidth_gb_per_second=3350.0,
    dense_bf16_tflops=989.4,
    dense_fp8_tflops=1978.9,
    board_power_watts=700.0,
    cores=16896,
    core_kind=_CUDA,
    sources=_sources(_H100_SHEET, **_peaks(_HOPPER_PAPER), cores=_HOPPER_PAPER),
)
_H100_PCIE = Device(
    name="NVIDIA H100 PCIe 80GB",
    names=("NVIDIA H100 PCIe",),
    memory_gb=80.0,
    memory_bandwidth_gb_per_second=2000.0,
    dense_bf16_tflops=756.5,
    dense_fp8_tflops=1513.0,
    board_power_watts=350.0,
    cores=14592,
    core_kind=_CUDA,
    sources=_sources(_H100_SHEET, **_peaks(f"{_H100_SHEET}, {_HALVED}"), cores=_HOPPER_PAPER),
)
_H100_NVL = Device(
    name="NVIDIA H100 NVL 94GB",
    names=("NVIDIA H100 NVL",),
    memory_gb=94.0,
    memory_bandwidth_gb_per_second=3900.0,
    dense_bf16_tflops=835.5,
    dense_fp8_tflops=1670.5,
    board_power_watts=400.0,
    cores=16896,
    core_kind=_CUDA,
    sources=_sources(_H100_NVL_SHEET, **_peaks(f"{_H100_NVL_SHEET}, {_HALVED}"), cores=_HOPPER_SMS),
)
_H200_SXM = replace(  # the chip of the H100 with other memory; the datasheet rounds its peaks to 1,979 and 3,958
    _H100_SXM,
    name="NVIDIA H200 SXM 141GB",
    names=("NVIDIA H200",),
    memory_gb=141.0,
    memory_bandwidth_gb_per_second=4800.0,
    sources=_sources(_H200_SHEET, **_peaks(f"{_HOPPER_PAPER}; {_H200_SHEET}, {_HALVED}"), cores=_HOPPER_SMS),
)
_H200_NVL = replace(
    _H100_NVL,
    name="NVIDIA H200 NVL 141GB",
    names=("NVIDIA H200 NVL",),
    memory_gb=141.0,
    memory_bandwidth_gb_per_second=4800.0,
    board_power_watts=600.0,
    sources=_sources(_H200_SHEET, **_peaks(f"{_H200_SHEET}, {_HALVED}"), cores=_HOPPER_SMS),
)
_B200 = Device(
    name="NVIDIA B200 180GB",
    names=("NVIDIA B200",),
    memory_gb=180.0,
    # The Blackwell datasheet states 7.7 TB/s, that of the DGX B200, with the same boards, 64 TB/s for eight. The higher
    # one is used, so that a share of the peak is never too high.
    memory_bandwidth_gb_per_second=8000.0,
    dense_bf16_tflops=2250.0,
    dense_fp8_tflops=4500.0,
    board_power_watts=1000.0,
    cores=18944,
    core_kind=_CUDA,
    sources=_sources(
        _BLACKWELL_SHEET,
        **_peaks(f"{_BLACKWELL_SHEET}, {_HALVED}"),
        memory_bandwidth_gb_per_second="NVIDIA DGX B200 datasheet (2024): 64 TB/s for eight GPUs",
        cores="NVIDIA CUDA C++ Programming Guide (2025): 128 CUDA cores an SM; 148 SMs, as the driver reports",
    ),
)
_MI250X = Device(
    name="AMD Instinct MI250X",
    names=("AMD Instinct MI250X",),
    names_with_cores=("AMD Instinct MI250X / MI250", "AMD Instinct MI250X/MI250"),
    memory_gb=128.0,
    memory_bandwidth_gb_per_second=3200.0,
    dense_bf16_tflops=383.0,
    dense_fp8_tflops=None,
    board_power_watts=560.0,
    cores=14080,
    core_kind=_STREAM,
    torch_devices_per_board=2,
    sources=_sources(
        "AMD Instinct MI200 Series accelerator datasheet (2021)",
        dense_fp8_tflops="AMD CDNA 2 Architecture white paper (2021): no FP8",
    ),
)
_MI300X = Device(
    name="AMD Instinct MI300X",
    names=("AMD Instinct MI300X", "AMD Instinct MI300X OAM"),
    names_with_memory=("AMD Instinct MI300X VF",),
    memory_gb=192.0,
    memory_bandwidth_gb_per_second=5300.0,
    dense_bf16_tflops=1307.4,
    dense_fp8_tflops=2614.9,
    board_power_watts=750.0,
    cores=19456,
    core_kind=_STREAM,
    sources=_sources("AMD Instinct MI300X accelerator data sheet (2023)"),
)
_MI325X = replace(
    _MI300X,
    name="AMD Instinct MI325X",
    names=("AMD Instinct MI325X", "AMD Instinct MI325X OAM"),
    names_with_memory=(),
    memory_gb=256.0,
    memory_bandwidth_gb_per_second=6000.0,
    board_power_watts=1000.0,
    sources=_sources("AMD Instinct MI325X accelerator data sheet (2024)"),
)
_MI355X = Device(
    name="AMD Instinct MI355X",
    names=("AMD Instinct MI355X", "AMD Instinct MI355X OAM"),
    memory_gb=288.0,
    memory_bandwidth_gb_per_second=8000.0,
    # The brochure rounds to 2.5 and 5.0 PFLOPS; these are 256 compute units at its 2.4 GHz.
    dense_bf16_tflops=2516.6,
    dense_fp8_tflops=5033.2,
    board_power_watts=1400.0,
    cores=16384,
    core_kind=_STREAM,
    sources=_sources(
        _MI355X_SHEET,
        dense_bf16_tflops=f"{_CDNA4_PAPER}: 4096 FLOP a clock and compute unit; clock of the {_MI355X_SHEET}",
        dense_fp8_tflops=f"{_CDNA4_PAPER}: 8192 FLOP a clock and compute unit; clock of the {_MI355X_SHEET}",
    ),
)

DEVICES: tuple[Device, ...] = (
    *(_A100_SXM_40, _A100_SXM_80, _A100_PCIE_40, _A100_PCIE_80),
    *(_H100_SXM, _H100_PCIE, _H100_NVL, _H200_SXM, _H200_NVL, _B200),
    *(_MI250X, _MI300X, _MI325X, _MI355X),
)

SHORT_NAMES: Mapping[str, Device] = {
    **{"A100": _A100_SXM_80, "H100": _H100_SXM, "H200": _H200_SXM, "B200": _B200},
    **{"MI250X": _MI250X, "MI300X": _MI300X, "MI325X": _MI325X, "MI355X": _MI355X},
}
"""The board that a short name means: that of machines with eight, with the larger memory."""


def named(name: str) -> Device | None:
    """Return the torch device of a short name, a row's name or a driver's name; None if the table has none."""
    wanted = " ".join(name.split()).casefold()
    by_name = {short.casefold(): board for short, board in SHORT_NAMES.items()}
    by_name |= {board.name.casefold(): board for board in DEVICES}
    return _one_torch_device(by_name[wanted]) if wanted in by_name else find_device(name)
