"""Boards of NVIDIA, by their datasheets; the names are those that nvidia-smi and torch print."""

from __future__ import annotations

from dataclasses import replace

from utils.hardware.device import CUDA, HALVED, Device, peaks, sources

_SITE, _LIBRARY = "https://www.nvidia.com/en-us/data-center", "https://resources.nvidia.com"
_AMPERE_PAPER = (
    "NVIDIA A100 Tensor Core GPU Architecture white paper (2020), "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf"
)
_A100_SHEET = (
    "NVIDIA A100 Tensor Core GPU datasheet (2021), https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/"
    "pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_HOPPER_PAPER = (
    "NVIDIA H100 Tensor Core GPU Architecture white paper (2022), "
    f"{_LIBRARY}/en-us-hopper-architecture/nvidia-h100-tensor-c"
)
_HOPPER_SMS = f"{_HOPPER_PAPER}: 128 CUDA cores an SM; 132 SMs, as the driver reports"
_NO_HOPPER_FP4 = f"{_HOPPER_PAPER}: no FP4"
_H100_ADDRESS = f"{_LIBRARY}/en-us-gpu-resources/h100-datasheet-24306"
_H100_SHEET = f"NVIDIA H100 Tensor Core GPU datasheet (2022), {_H100_ADDRESS}"
_H100_NVL_SHEET = f"NVIDIA H100 Tensor Core GPU datasheet (2024), {_H100_ADDRESS}, H100 NVL column"
_H200_SHEET = f"NVIDIA H200 Tensor Core GPU datasheet (2024), {_SITE}/h200/"
_H20_PRESS = (
    "Tom's Hardware on NVIDIA's H20 (2024), https://www.tomshardware.com/pc-components/gpus/new-nvidia-ai-gpus-designed-"
    "to-get-around-us-export-bans-come-to-china-h20-l20-and-l2-to-fill-void-left-by-restricted-models; NVIDIA has no "
    "public datasheet"
)
_GH200_SHEET = (
    f"NVIDIA GH200 Grace Hopper Superchip datasheet (2023), {_LIBRARY}/en-us-data-center-overview-mc/"
    "en-us-data-center-overview/grace-hopper-superchip-datasheet-partner"
)
_L40S_SHEET = f"NVIDIA L40S datasheet (2023), {_LIBRARY}/en-us-l40s/l40s-datasheet-28413"
_BLACKWELL_SHEET = "NVIDIA Blackwell datasheet (2025), https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
_ULTRA_SHEET = (
    f"NVIDIA Blackwell Ultra datasheet (2025), {_LIBRARY}/en-us-blackwell-architecture/blackwell-ultra-datasheet"
)
_HGX_REFERENCE = (
    "NVIDIA HGX AI Factory reference architecture, components (2026), "
    "https://docs.nvidia.com/enterprise-reference-architectures/hgx-ai-factory/latest/components.html"
)
_CUDA_GUIDE = "NVIDIA CUDA C++ Programming Guide (2025), https://docs.nvidia.com/cuda/cuda-c-programming-guide/"

_A100_SXM_40 = Device(
    name="NVIDIA A100 SXM 40GB",
    names=("NVIDIA A100-SXM4-40GB",),
    memory_gb=40.0,
    memory_bandwidth_gb_per_second=1555.0,
    dense_bf16_tflops=312.0,
    dense_fp8_tflops=None,
    dense_fp4_tflops=None,
    board_power_watts=400.0,
    cores=6912,
    core_kind=CUDA,
    sources=sources(
        _A100_SHEET,
        dense_fp8_tflops=f"{_AMPERE_PAPER}: no FP8",
        dense_fp4_tflops=f"{_AMPERE_PAPER}: no FP4",
        cores=_AMPERE_PAPER,
    ),
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
    dense_fp4_tflops=None,
    board_power_watts=700.0,
    cores=16896,
    core_kind=CUDA,
    sources=sources(_H100_SHEET, **peaks(_HOPPER_PAPER, fp4=_NO_HOPPER_FP4), cores=_HOPPER_PAPER),
)
_H100_PCIE = replace(
    _H100_SXM,
    name="NVIDIA H100 PCIe 80GB",
    names=("NVIDIA H100 PCIe",),
    memory_bandwidth_gb_per_second=2000.0,
    dense_bf16_tflops=756.5,
    dense_fp8_tflops=1513.0,
    board_power_watts=350.0,
    cores=14592,
    sources=sources(_H100_SHEET, **peaks(f"{_H100_SHEET}, {HALVED}", fp4=_NO_HOPPER_FP4), cores=_HOPPER_PAPER),
)
_H100_NVL = replace(
    _H100_SXM,
    name="NVIDIA H100 NVL 94GB",
    names=("NVIDIA H100 NVL",),
    memory_gb=94.0,
    memory_bandwidth_gb_per_second=3900.0,
    dense_bf16_tflops=835.5,
    dense_fp8_tflops=1670.5,
    board_power_watts=400.0,
    sources=sources(
        _H100_NVL_SHEET,
        **peaks(f"{_H100_NVL_SHEET}, {HALVED}", fp4=_NO_HOPPER_FP4),
        cores=_HOPPER_SMS,
    ),
)
_H200_SXM = replace(  # the chip of the H100 with other memory; the datasheet rounds its peaks to 1,979 and 3,958
    _H100_SXM,
    name="NVIDIA H200 SXM 141GB",
    names=("NVIDIA H200",),
    memory_gb=141.0,
    memory_bandwidth_gb_per_second=4800.0,
    sources=sources(
        _H200_SHEET,
        **peaks(f"{_HOPPER_PAPER}; {_H200_SHEET}, {HALVED}", fp4=_NO_HOPPER_FP4),
        cores=_HOPPER_SMS,
    ),
)
_H200_NVL = replace(
    _H100_NVL,
    name="NVIDIA H200 NVL 141GB",
    names=("NVIDIA H200 NVL",),
    memory_gb=141.0,
    memory_bandwidth_gb_per_second=4800.0,
    board_power_watts=600.0,
    sources=sources(
        _H200_SHEET,
        **peaks(f"{_H200_SHEET}, {HALVED}", fp4=_NO_HOPPER_FP4),
        cores=_HOPPER_SMS,
    ),
)
_H20 = replace(
    _H100_SXM,
    name="NVIDIA H20 96GB",
    names=("NVIDIA H20",),
    memory_gb=96.0,
    memory_bandwidth_gb_per_second=4000.0,
    dense_bf16_tflops=148.0,
    dense_fp8_tflops=296.0,
    board_power_watts=400.0,
    cores=9984,
    sources=sources(
        _H20_PRESS,
        dense_fp4_tflops=_NO_HOPPER_FP4,
        cores=f"{_HOPPER_PAPER}: 128 CUDA cores an SM; 78 SMs, as the driver reports",
    ),
)
_GH200_96 = replace(  # drivers name the size of the processor's memory, 480 or 120 GB; the GPU has 96 GB with both
    _H100_SXM,
    name="NVIDIA GH200 96GB",
    names=("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
    memory_gb=96.0,
    memory_bandwidth_gb_per_second=4000.0,
    board_power_watts=1000.0,
    sources=sources(
        _GH200_SHEET,
        **peaks(f"{_HOPPER_PAPER}; {_GH200_SHEET}, which rounds to 990 and 1,979", fp4=_NO_HOPPER_FP4),
        board_power_watts=f"{_GH200_SHEET}: of the superchip, processor and both memories included",
        cores=_HOPPER_SMS,
    ),
)
_GH200_144 = replace(
    _GH200_96,
    name="NVIDIA GH200 144GB",
    names=("NVIDIA GH200 144G HBM3e",),
    memory_gb=144.0,
    memory_bandwidth_gb_per_second=4900.0,
)
_L40S = Device(
    name="NVIDIA L40S 48GB",
    names=("NVIDIA L40S",),
    memory_gb=48.0,
    memory_bandwidth_gb_per_second=864.0,
    # The datasheet prints the dense figures too. Its 733 TFLOPS of BF16 with sparsity would be 366.5 without.
    dense_bf16_tflops=362.05,
    dense_fp8_tflops=733.0,
    dense_fp4_tflops=None,
    board_power_watts=350.0,
    cores=18176,
    core_kind=CUDA,
    sources=sources(_L40S_SHEET, dense_fp4_tflops=f"{_L40S_SHEET}: no FP4"),
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
    dense_fp4_tflops=9000.0,
    board_power_watts=1000.0,
    cores=18944,
    core_kind=CUDA,
    sources=sources(
        f"{_BLACKWELL_SHEET}, HGX B200 column",
        **peaks(f"{_BLACKWELL_SHEET}, HGX B200 column, {HALVED}"),
        memory_bandwidth_gb_per_second=(
            f"NVIDIA DGX B200 datasheet (2024), {_LIBRARY}/en-us-dgx-systems/dgx-b200-datasheet: 64 TB/s for eight GPUs"
        ),
        cores=f"{_CUDA_GUIDE}: 128 CUDA cores an SM; 148 SMs, as the driver reports",
    ),
)
_GB200 = replace(  # one of the two GPUs of a superchip, which torch shows as two devices
    _B200,
    name="NVIDIA GB200 186GB",
    names=("NVIDIA GB200",),
    memory_gb=186.0,
    dense_bf16_tflops=2500.0,
    dense_fp8_tflops=5000.0,
    dense_fp4_tflops=10_000.0,
    board_power_watts=1200.0,
    cores=19456,
    sources=sources(
        f"{_BLACKWELL_SHEET}, GB200 NVL72 column",
        **peaks(f"{_BLACKWELL_SHEET}, GB200 NVL72 column, {HALVED}"),
        cores=f"{_CUDA_GUIDE}: 128 CUDA cores an SM; 152 SMs, as the driver reports",
    ),
)
_B300 = replace(
    _B200,
    name="NVIDIA B300 270GB",
    names=("NVIDIA B300 SXM6 AC",),
    memory_gb=270.0,
    # As for the B200: the datasheet states 7.7 TB/s, the reference architecture of machines with eight up to 8 TB/s.
    memory_bandwidth_gb_per_second=8000.0,
    # The datasheet states 14 PFLOPS for one, and 108 for eight (13.5 each): the higher one is used.
    dense_fp4_tflops=14_000.0,
    board_power_watts=1100.0,
    sources=sources(
        f"{_ULTRA_SHEET}, HGX B300 column",
        **peaks(f"{_ULTRA_SHEET}, HGX B300 column, {HALVED}", fp4=f"{_ULTRA_SHEET}, HGX B300 column, dense figure"),
        memory_bandwidth_gb_per_second=f"{_HGX_REFERENCE}: up to 8 TB/s",
        cores=f"{_CUDA_GUIDE}: 128 CUDA cores an SM; 148 SMs, as the driver reports",
    ),
)
_GB300 = replace(  # one of the two GPUs of a superchip
    _GB200,
    name="NVIDIA GB300 279GB",
    names=("NVIDIA GB300",),
    memory_gb=279.0,
    dense_fp4_tflops=15_000.0,
    board_power_watts=1400.0,
    sources=sources(
        f"{_ULTRA_SHEET}, GB300 NVL72 column",
        **peaks(
            f"{_ULTRA_SHEET}, GB300 NVL72 column, {HALVED}", fp4=f"{_ULTRA_SHEET}, GB300 NVL72 column, dense figure"
        ),
        cores=f"{_CUDA_GUIDE}: 128 CUDA cores an SM; 152 SMs, as the driver reports",
    ),
)

NVIDIA: tuple[Device, ...] = (
    *(_A100_SXM_40, _A100_SXM_80, _A100_PCIE_40, _A100_PCIE_80),
    *(_H100_SXM, _H100_PCIE, _H100_NVL, _H200_SXM, _H200_NVL, _H20, _GH200_96, _GH200_144, _L40S),
    *(_B200, _GB200, _B300, _GB300),
)
