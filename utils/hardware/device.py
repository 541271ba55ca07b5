"""The figures of one accelerator board, with a source beside each of them.

Peaks are dense. NVIDIA's datasheets since Hopper print the figure with 2:4 sparsity, twice the dense one; it is halved
in the rows, as their sources state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NUMBERS = (
    "memory_gb",
    "memory_bandwidth_gb_per_second",
    "dense_bf16_tflops",
    "dense_fp8_tflops",
    "dense_fp4_tflops",
    "board_power_watts",
    "cores",
)
CUDA, STREAM = "CUDA cores", "stream processors"
HALVED = "with-sparsity figure halved"


@dataclass(frozen=True)
class Device:
    """One board by its datasheet; `sources` names the datasheet of each of NUMBERS, with its year and address.

    `memory_gb` is the marketed number. `dense_fp8_tflops` and `dense_fp4_tflops` are None if the hardware lacks the
    format. `board_power_watts` is the highest value that the vendor states; a machine may be configured lower. `names`
    are driver names of this board only. Drivers use `names_with_memory` also for a part of it, and `names_with_cores`
    also for another board of equal memory: these names match only together with the number that distinguishes them.
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


def sources(datasheet: str, **exceptions: str) -> dict[str, str]:
    """Return the source of each of NUMBERS: the datasheet, or the exception that is named."""
    return {number: exceptions.get(number, datasheet) for number in NUMBERS}


def peaks(source: str, fp4: str | None = None) -> dict[str, str]:
    """Return the source of the peak of every precision; `fp4` is that of FP4 where it is another one."""
    return dict.fromkeys(("dense_bf16_tflops", "dense_fp8_tflops"), source) | {"dense_fp4_tflops": fp4 or source}
