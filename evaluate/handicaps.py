"""Environment variables that slow a side down, so that one side alone must not have them."""

from __future__ import annotations

HANDICAPS = {
    ("CUDA_LAUNCH_BLOCKING", "1"): "every kernel is waited for (CUDA C++ Programming Guide)",
    ("HIP_LAUNCH_BLOCKING", "1"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "3"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_COPY", "3"): "every copy is waited for (HIP documentation)",
    ("HSA_ENABLE_SDMA", "0"): "copies take compute units instead of the copy engines (ROCm documentation)",
    ("HSA_NO_SCRATCH_RECLAIM", "0"): "scratch memory is given back after each kernel; AMD's own benchmark sets 1",
    ("NCCL_P2P_DISABLE", "1"): "GPUs exchange through the host (NCCL documentation)",
    ("NCCL_SHM_DISABLE", "1"): "GPUs of a machine exchange through the network (NCCL documentation)",
    ("NCCL_IB_DISABLE", "1"): "machines exchange over sockets, not InfiniBand (NCCL documentation)",
    ("NCCL_NVLS_ENABLE", "0"): "reductions in the switch are off (NCCL documentation)",
    ("RCCL_MSCCL_ENABLE", "0"): "RCCL's tuned collectives are off (RCCL documentation)",
    ("RCCL_MSCCLPP_ENABLE", "0"): "RCCL's tuned collectives are off (RCCL documentation)",
    ("NVTE_FLASH_ATTN", "0"): "TransformerEngine may not take FlashAttention",
    ("NVTE_FUSED_ATTN", "0"): "TransformerEngine may not take fused attention",
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"): "every allocation goes to the driver (PyTorch documentation)",
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "collectives are checked as they run (PyTorch documentation)",
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): "every collective is waited for (PyTorch documentation)",
}


RECIPES = {
    ("nvd", "NCCL_NVLS_ENABLE", "0"): "NeMo 2.3, scripts/performance: NVIDIA's own setting for these models",
}
"""Values that a vendor itself sets for speed: no handicap on its own platform."""


def handicap(platform: str, name: str, value: str) -> str:
    """Return what a variable with this value takes from a platform's speed, empty where nothing is known of it."""
    return "" if (platform, name, value) in RECIPES else HANDICAPS.get((name, value), "")
