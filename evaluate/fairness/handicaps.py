"""Environment variables that slow a side down, so that one side alone must not have them."""

from __future__ import annotations

from collections.abc import Mapping

HANDICAPS = {
    ("CUDA_LAUNCH_BLOCKING", "1"): "every kernel is waited for (CUDA C++ Programming Guide)",
    ("HIP_LAUNCH_BLOCKING", "1"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "1"): "each kernel waits for the one before (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "2"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "3"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_COPY", "3"): "every copy is waited for (HIP documentation)",
    ("HSA_ENABLE_SDMA", "0"): "copies take compute units instead of the copy engines (ROCm documentation)",
    ("HSA_NO_SCRATCH_RECLAIM", "0"): "scratch memory is given back after each kernel; AMD's own benchmark sets 1",
    ("NCCL_P2P_DISABLE", "1"): "GPUs exchange through the host (NCCL documentation)",
    ("NCCL_SHM_DISABLE", "1"): "GPUs of a machine exchange through the network (NCCL documentation)",
    ("NCCL_IB_DISABLE", "1"): "machines exchange over sockets, not InfiniBand (NCCL documentation)",
    ("NCCL_COLLNET_ENABLE", "0"): "reductions in the network are off (NCCL documentation)",
    ("NCCL_NET_GDR_LEVEL", "LOC"): "the network does not read GPU memory itself (NCCL documentation)",
    ("NCCL_P2P_LEVEL", "LOC"): "GPUs exchange through the host (NCCL documentation)",
    ("NCCL_NVLS_ENABLE", "0"): "reductions in the switch are off (NCCL documentation)",
    ("RCCL_MSCCL_ENABLE", "0"): "RCCL's tuned collectives are off (RCCL documentation)",
    ("RCCL_MSCCLPP_ENABLE", "0"): "RCCL's tuned collectives are off (RCCL documentation)",
    ("NVTE_FLASH_ATTN", "0"): "TransformerEngine may not take FlashAttention",
    ("NVTE_FUSED_ATTN", "0"): "TransformerEngine may not take fused attention",
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"): "every allocation goes to the driver (PyTorch documentation)",
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "collectives are checked as they run (PyTorch documentation)",
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): "every collective is waited for (PyTorch documentation)",
    ("NVIDIA_TF32_OVERRIDE", "1"): "32-bit matrix products are made with fewer bits (cuBLAS documentation)",
}
"""By variable and value: what it takes from a side, or spares it of the work."""
SPEED_UPS = {
    ("PYTORCH_TUNABLEOP_ENABLED", "1"): "the fastest kernel is looked for, by shape (PyTorch documentation, TunableOp)",
    ("TORCH_BLAS_PREFER_HIPBLASLT", "1"): "hipBLASLt is taken where there is a choice (PyTorch documentation)",
    ("NVTE_FUSED_ATTN", "1"): "TransformerEngine may take fused attention",
    ("NVTE_FLASH_ATTN", "1"): "TransformerEngine may take FlashAttention",
}
"""A vendor's own means, as kernels and compilers are: they may differ, and are shown with what they do."""


RECIPES = {
    ("nvd", "NCCL_NVLS_ENABLE", "0"): (
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"),
        "NVIDIA's own recipe has it (NeMo 2.3, scripts/performance), with TORCH_NCCL_AVOID_RECORD_STREAMS=1",
    ),
}
"""Values that a vendor itself sets for speed on its platform, each with another of the same recipe that stands beside
it: alone, it is no recipe but a feature that was switched off."""


def handicap(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return what a variable of this environment takes from a platform's speed, empty where nothing is known of it."""
    value = environment.get(name, "")
    return "" if recipe(platform, environment, name) else HANDICAPS.get((name, value), "")


def remark(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return what is to be said of a variable that may differ: whose recipe it is of, or what it does for speed."""
    return recipe(platform, environment, name) or SPEED_UPS.get((name, environment.get(name, "")), "")


def recipe(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return whose recipe a variable of this environment is part of, empty where it is of none."""
    (beside, needed), source = RECIPES.get((platform, name, environment.get(name, "")), (("", ""), ""))
    return source if source and environment.get(beside) == needed else ""
