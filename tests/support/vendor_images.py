"""What a result records of the environment of the ranks in the vendors' images (image_variables.py)."""

from __future__ import annotations

from image_variables import variables
from settings_of import settings_of

from train.job import rank_environment
from train.prim.environment import AMD_BENCHMARK, AMD_BENCHMARK_GFX942
from train.settings_map import map as frameworks
from utils.provenance.origin import speed_variables

OF_LAUNCHER = {
    # printed by both launchers of Primus (examples/run_pretrain.sh of fd1eeab, base_env.sh of pull request 999)
    **{"HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "NCCL_CHECKS_DISABLE": "1", "NCCL_CROSS_NIC": "0", "NCCL_IB_HCA": ""},
    **{"NCCL_SOCKET_IFNAME": "eno1", "GLOO_SOCKET_IFNAME": "eno1", "NCCL_PXN_DISABLE": "0", "NCCL_IB_GID_INDEX": "3"},
    **{"RCCL_MSCCL_ENABLE": "0", "RCCL_MSCCLPP_ENABLE": "0", "RCCL_MSCCLPP_FORCE_ENABLE": "0"},
    **{"RCCL_MSCCLPP_THRESHOLD": "1073741824", "NCCL_P2P_NET_CHUNKSIZE": "524288", "HSA_ENABLE_SDMA": "1"},
    **{"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "0", "TORCH_NCCL_HIGH_PRIORITY": "1", "NVTE_DEBUG": "0"},
    **{"GPU_MAX_HW_QUEUES": "2", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_USE_CAST_TRANSPOSE_TRITON": "1"},
    **{"NVTE_USE_OPTIMIZED_HIPIFIED_CAST_TRANSPOSE": "0", "NVTE_DEBUG_LEVEL": "0", "NVTE_FUSED_ATTN_LOG_CONFIG": "0"},
    **{"NVTE_ROCM_ENABLE_MXFP8": "1", "RCCL_WARP_SPEED_AUTO": "0", "PRIMUS_TURBO_DEEPEP_TIMEOUT": "600"},
    **{"PRIMUS_PATH": "/workspace/Primus", "TRITON_CACHE_DIR": "/workspace/cache_persist/triton"},
}


def recorded(image: str, framework: str, *settings: str, **user: str) -> dict[str, str]:
    """Return what a result records of the environment of a framework's ranks in an image on eight GPUs."""
    platform = image.partition("-")[0]
    outside = rank_environment.select({**variables(image), **user}).variables
    passed = {name: value for name, value in outside.items() if name not in frameworks.decided(framework)}
    config = settings_of("FRAMEWORK=mega DATASET=synth", *settings, platform=platform, gpus=8)
    ours = {"OMP_NUM_THREADS": "24" if platform == "amd" else "12"}  # machines have other numbers of cores
    found = ours | frameworks.environment(framework, config, config.spec("llama")) | passed
    if framework == "prim":
        found = AMD_BENCHMARK | AMD_BENCHMARK_GFX942 | OF_LAUNCHER | found
    return speed_variables(found)
