"""Boards of AMD, by their datasheets; the names are those of libdrm's data/amdgpu.ids, which torch prints.

Architectures: LLVM target names of "Accelerator and GPU hardware specifications",
https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html.
"""

from __future__ import annotations

from dataclasses import replace

from utils.hardware.device import STREAM, Device, sources

_DOCUMENTS = "https://www.amd.com/content/dam/amd/en/documents"
_MI200_SHEET = (
    f"AMD Instinct MI200 Series datasheet (2021), {_DOCUMENTS}/instinct-tech-docs/instinct-mi200-datasheet.pdf"
)
_MI250_PAGE = (
    "AMD Instinct MI250 specifications (2021), https://www.amd.com/en/products/accelerators/instinct/mi200/mi250.html"
)
_MI210_BROCHURE = (
    "AMD Instinct MI210 accelerator brochure (2022), "
    f"{_DOCUMENTS}/instinct-business-docs/product-briefs/instinct-mi210-brochure.pdf"
)
_CDNA2_PAPER = (
    "AMD CDNA 2 Architecture white paper (2021), https://www.amd.com/system/files/documents/amd-cdna2-white-paper.pdf"
)
_CDNA3_PAPER = (
    "AMD CDNA 3 Architecture white paper (2023), "
    f"{_DOCUMENTS}/instinct-tech-docs/white-papers/amd-cdna-3-white-paper.pdf"
)
_MI300X_SHEET = (
    "AMD Instinct MI300X accelerator data sheet (2023), "
    f"{_DOCUMENTS}/instinct-tech-docs/data-sheets/amd-instinct-mi300x-data-sheet.pdf"
)
_MI300A_SHEET = (
    f"AMD Instinct MI300A APU data sheet (2023), "
    f"{_DOCUMENTS}/instinct-tech-docs/data-sheets/amd-instinct-mi300a-data-sheet.pdf"
)
_MI325X_SHEET = (
    "AMD Instinct MI325X specifications (2024), https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html"
)
_CDNA4_PAPER = (
    "AMD CDNA 4 Architecture white paper (2025), "
    f"{_DOCUMENTS}/instinct-tech-docs/white-papers/amd-cdna-4-architecture-whitepaper.pdf"
)
_MI350X_BROCHURE = (
    "AMD Instinct MI350X GPU brochure (2025), "
    f"{_DOCUMENTS}/instinct-tech-docs/product-briefs/amd-instinct-mi350x-gpu-brochure.pdf"
)
_MI355X_BROCHURE = (
    "AMD Instinct MI355X GPU brochure (2025), "
    f"{_DOCUMENTS}/instinct-tech-docs/product-briefs/amd-instinct-mi355x-gpu-brochure.pdf"
)
_NO_CDNA2 = {"dense_fp8_tflops": f"{_CDNA2_PAPER}: no FP8", "dense_fp4_tflops": f"{_CDNA2_PAPER}: no FP4"}
_NO_CDNA3_FP4 = f"{_CDNA3_PAPER}: no FP4"


def _cdna4_peaks(brochure: str) -> dict[str, str]:
    """Return the sources of peaks that are 256 compute units at the brochure's clock; the brochure rounds them."""
    per_clock = {"bf16": 4096, "fp8": 8192, "fp4": 16_384}
    return {
        f"dense_{precision}_tflops": f"{_CDNA4_PAPER}: {flop} FLOP a clock and compute unit; clock of the {brochure}"
        for precision, flop in per_clock.items()
    }


_MI210 = Device(
    name="AMD Instinct MI210",
    names=("AMD Instinct MI210",),
    memory_gb=64.0,
    memory_bandwidth_gb_per_second=1600.0,
    dense_bf16_tflops=181.0,
    dense_fp8_tflops=None,
    dense_fp4_tflops=None,
    board_power_watts=300.0,
    cores=6656,
    core_kind=STREAM,
    sources=sources(_MI210_BROCHURE, **_NO_CDNA2),
    architecture="gfx90a",
)
_MI250X = Device(
    name="AMD Instinct MI250X",
    names=("AMD Instinct MI250X",),
    names_with_cores=("AMD Instinct MI250X / MI250", "AMD Instinct MI250X/MI250"),
    memory_gb=128.0,
    memory_bandwidth_gb_per_second=3200.0,
    dense_bf16_tflops=383.0,
    dense_fp8_tflops=None,
    dense_fp4_tflops=None,
    board_power_watts=560.0,
    cores=14080,
    core_kind=STREAM,
    torch_devices_per_board=2,
    sources=sources(_MI200_SHEET, **_NO_CDNA2),
    architecture="gfx90a",
)
_MI250 = replace(
    _MI250X,
    name="AMD Instinct MI250",
    names=("AMD Instinct MI250",),
    dense_bf16_tflops=362.1,
    cores=13312,
    sources=sources(f"{_MI200_SHEET}; {_MI250_PAGE}", **_NO_CDNA2),
)
_MI300X = Device(
    name="AMD Instinct MI300X",
    names=("AMD Instinct MI300X", "AMD Instinct MI300X OAM"),
    names_with_memory=("AMD Instinct MI300X VF",),
    memory_gb=192.0,
    memory_bandwidth_gb_per_second=5300.0,
    dense_bf16_tflops=1307.4,
    dense_fp8_tflops=2614.9,
    dense_fp4_tflops=None,
    board_power_watts=750.0,
    cores=19456,
    core_kind=STREAM,
    sources=sources(_MI300X_SHEET, dense_fp4_tflops=_NO_CDNA3_FP4),
    architecture="gfx942",
)
_MI300A = replace(  # its 128 GB are the memory of its processor too
    _MI300X,
    name="AMD Instinct MI300A",
    names=("AMD Instinct MI300A",),
    names_with_memory=(),
    memory_gb=128.0,
    dense_bf16_tflops=980.6,
    dense_fp8_tflops=1961.2,
    board_power_watts=760.0,
    cores=14592,
    sources=sources(
        _MI300A_SHEET,
        dense_fp4_tflops=_NO_CDNA3_FP4,
        board_power_watts=f"{_MI300A_SHEET}: 550 W, peak 760 W, processor cores and memory included",
    ),
)
_MI325X = replace(
    _MI300X,
    name="AMD Instinct MI325X",
    names=("AMD Instinct MI325X", "AMD Instinct MI325X OAM"),
    names_with_memory=(),
    memory_gb=256.0,
    memory_bandwidth_gb_per_second=6000.0,
    board_power_watts=1000.0,
    sources=sources(_MI325X_SHEET, dense_fp4_tflops=_NO_CDNA3_FP4),
)
_MI355X = Device(
    name="AMD Instinct MI355X",
    names=("AMD Instinct MI355X", "AMD Instinct MI355X OAM"),
    names_with_memory=("AMD Instinct MI355X VF",),
    memory_gb=288.0,
    memory_bandwidth_gb_per_second=8000.0,
    # The brochure rounds to 2.5, 5.0 and 10.1 PFLOPS; these are 256 compute units at its 2.4 GHz.
    dense_bf16_tflops=2516.6,
    dense_fp8_tflops=5033.2,
    dense_fp4_tflops=10_066.3,
    board_power_watts=1400.0,
    cores=16384,
    core_kind=STREAM,
    sources=sources(_MI355X_BROCHURE, **_cdna4_peaks(_MI355X_BROCHURE)),
    architecture="gfx950",
)
_MI350X = replace(
    _MI355X,
    name="AMD Instinct MI350X",
    names=("AMD Instinct MI350X", "AMD Instinct MI350X OAM"),
    names_with_memory=("AMD Instinct MI350X VF",),
    # The brochure rounds to 2.3, 4.6 and 9.2 PFLOPS; these are 256 compute units at its 2.2 GHz.
    dense_bf16_tflops=2306.9,
    dense_fp8_tflops=4613.7,
    dense_fp4_tflops=9227.5,
    board_power_watts=1000.0,
    sources=sources(_MI350X_BROCHURE, **_cdna4_peaks(_MI350X_BROCHURE)),
)

AMD: tuple[Device, ...] = (_MI210, _MI250, _MI250X, _MI300A, _MI300X, _MI325X, _MI350X, _MI355X)
