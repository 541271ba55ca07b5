"""The kind of device that a result was measured on: a board by its name, whole or one partition of it.

A partition (AMD's CPX and NPS modes, NVIDIA's MIG) is one device to the framework, keeps the name of the board and has
a share of its memory and cores. It is found in the recorded conditions, in the name, or in the memory and the cores
that the result records beside a board of utils/hardware/devices.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from evaluate.metrics.figures import Figure, unknown
from utils.hardware.devices import MEMORY_TOLERANCE, Device, find_device, named
from utils.results.schema import Result

AMD_MODES = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}
"""Partitions of a board by compute mode (AMD Instinct MI300X partitioning guide); an MI300A has 6 in CPX."""
WHOLE_MEMORY = ("", "NPS1")
MOST_PARTS = 8
CORES_TOLERANCE = 0.1
"""NVIDIA's slices have a seventh of the multiprocessors and an eighth of the memory."""
_MODE = re.compile(r"\b(SPX|DPX|TPX|QPX|CPX)\b(?:[\s/_-]*(NPS\d))?", re.IGNORECASE)
_SLICE = re.compile(r"\s*\bMIG\b\s*(\S*)", re.IGNORECASE)


@dataclass(frozen=True)
class Kind:
    """One kind of device; two results of different kinds never share a side."""

    name: str | None
    """Name of the board by the table of devices, or as the driver reports it; None if the result has none."""
    mode: str = ""
    """Partition mode by the conditions or the name: `CPX/NPS4`; empty for the usual mode, or if none is recorded.

    Of a board whose dies are devices of their own, also that the device is one of them.
    """
    parts: int | None = 1
    """Number of such partitions that make a board; 1 for a whole device, None if it is a part of unknown size."""
    size: str = field(default="", compare=False)
    """Memory of a partition beside that of its board."""

    @property
    def is_whole(self) -> bool:
        """True for a whole device."""
        return self.parts == 1

    @property
    def full_name(self) -> str:
        """The name of the board with its partition; empty if unknown."""
        if self.name and self.text:
            return f"{self.name} ({self.text})"
        return self.name or ""

    @property
    def text(self) -> str:
        """The partition in words: `CPX/NPS4, 1/8 of a device`; empty for a whole device in its usual mode."""
        if self.is_whole:
            return self.mode
        share = f"1/{self.parts} of a device" if self.parts else "part of a device"
        return f"{self.mode}, {share}" if self.mode else share


def kind_of(result: Result) -> Kind:
    """Return the kind of device of a result; without any sign of a partition, a whole device."""
    info = result["gpu_info"]
    name = " ".join(str(info["device_name"] or "").split())
    if not name:
        return Kind(None)
    bare = _MODE.sub("", _SLICE.sub("", name)).strip(" ()/,")
    memory, cores = info["total_memory_gb"], info["gpu_cores"]
    # a partition has less memory and fewer cores than its board, so that only the name may identify it
    board = find_device(name, memory, cores) or find_device(name, memory)
    board = board or named(bare) or named(bare.removesuffix(" VF"))
    parts, mode = _stated(name, str((result.get("conditions") or {}).get("partition") or ""))
    by_size = _by_size(board, memory, cores)
    if by_size != 1 and parts in (1, None):
        parts = by_size
    if board is None:
        return Kind(bare, mode, parts)
    if board.torch_devices_per_board > 1 and not mode:
        mode = f"one of {board.torch_devices_per_board} dies"
    size = ""
    if memory and memory < board.memory_gb and parts != 1:
        size = f"{memory:.3g} of {board.memory_gb:.4g} GB"
    return Kind(board.name, mode, parts, size)


def _stated(name: str, recorded: str) -> tuple[int | None, str]:
    """Return the number of partitions of a board and the mode, as the name or the recorded conditions have them."""
    slice_of_board = _SLICE.search(name)
    if slice_of_board:
        return None, f"MIG {slice_of_board[1]}".strip()
    if recorded.casefold() == "enabled":  # a framework can only use a slice of such a board
        return None, "MIG"
    mode = _MODE.search(name) or _MODE.search(recorded)
    if mode is None:
        return 1, ""
    compute, memory = mode[1].upper(), (mode[2] or "").upper()
    if compute == "SPX" and memory in WHOLE_MEMORY:
        return 1, ""
    return AMD_MODES[compute], f"{compute}/{memory}" if memory else compute


def _by_size(board: Device | None, memory: float | None, cores: int | None) -> int | None:
    """Return how many devices of this memory and these cores make the board; None if no whole number does."""
    if board is None:
        return 1
    counts = range(2, MOST_PARTS + 1)
    if memory and memory < MEMORY_TOLERANCE[0] * board.memory_gb:
        low, high = (limit * board.memory_gb / memory for limit in MEMORY_TOLERANCE)
        return next((count for count in counts if low <= count <= high), None)
    if cores:
        for count in counts:
            if abs(cores * count / board.cores - 1) <= CORES_TOLERANCE / count:
                return count
    return 1


# The dense peak that a run is measured against: that of its device and of the precision of its matrix multiplies.
#
# A run with PRECISION=fp8 and a recipe of 4 bits computes at the rate of FP4. Over the FP8 peak its utilisation would
# be twice what it is.

UNIT = "TFLOP/s"
FOUR_BITS = ("nvfp4", "mxfp4", "fp4")
KEPT = ("bf16", "fp8", "fp4")


def format_of(result: Result) -> str | None:
    """Return the precision of the matrix multiplies of a run: its recipe if that is one of 4 bits, else its precision.

    The recipe that was read back comes before the one that was asked for.
    """
    asked, resolved = result["training_config"], result["resolved_config"]
    recipe = resolved.get("fp8_recipe") or asked.get("fp8_recipe")
    is_of_four_bits = asked["precision"] == "fp8" and recipe in FOUR_BITS
    return str(recipe) if is_of_four_bits else asked["precision"]


def dense_peak(result: Result, device: Device | None) -> Figure:
    """Return the dense peak of one device for a run, in TFLOP/s; unknown, with the reason, where the table has none."""
    if device is None:
        name = result["gpu_info"]["device_name"] or "the device"
        return unknown(UNIT, f"{name} is not known here, so it has no peak; no other chip's is taken")
    found = format_of(result)
    precision = "fp4" if found in FOUR_BITS else found
    if precision not in KEPT:
        return unknown(UNIT, f"no dense peak of {found} is kept")
    key = f"dense_{precision}_tflops"
    peak: float | None = getattr(device, key)
    if peak is None:
        return unknown(UNIT, f"{device.name} has no {precision}")
    return Figure(peak, UNIT, f"dense {precision} peak of {device.name}: {device.sources[key]}")
