"""Variables of the vendors' base images: facts from their published Dockerfiles and layers, in `images/*.env`.

amd: rocm/primus v26.5.1 (AMD-AGI/Primus fd1eeab, .github/workflows/docker-release/Dockerfile.primus-v26.5.1, whose
argument UCX_VERSION is filled in). nvd: a published listing of the layers of nvcr.io/nvidia/pytorch:25.10, on which
NeMo's images stand, without versions of single libraries; the last two lines are those of Megatron-Bridge's own image
(NVIDIA-NeMo/Megatron-Bridge 067f987, docker/Dockerfile.ci).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from checkout import settings_of
from sides import DEVICES, STACKS, make_consistent

from train.job import rank_environment
from train.prim.environment import AMD_BENCHMARK, AMD_BENCHMARK_GFX942
from train.settings_map import map as frameworks
from utils.provenance.origin import speed_variables

FILES = Path(__file__).parent / "images"
DEBIAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def lines(platform: str) -> list[tuple[str, str]]:
    """Return names and values as the Dockerfile has them, in its order."""
    text = (FILES / f"{platform}.env").read_text(encoding="utf8")
    return [(name, value) for name, _, value in (line.partition("=") for line in text.splitlines())]


def variables(platform: str) -> dict[str, str]:
    """Return what a process in the image gets: `$NAME` and `${NAME}` are expanded as in the ENV of a Dockerfile."""
    found = {"PATH": DEBIAN_PATH}
    for name, value in lines(platform):
        found[name] = re.sub(r"\$\{?(\w+)\}?", lambda match: found.get(match[1], ""), value)
    return found


# What a result records of the environment of the ranks in the vendors' images (image_variables.py).

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


# Results of a container without a GPU, told as those of its vendor's GPUs; the recorded variables stay.

_ENGINE = {"layer_implementation": "transformer_engine", "attention_backend": "transformer_engine:auto"}
LAYERS = {
    "hf": {"amd": {"attention_backend": "torch_sdpa:flash"}, "nvd": {"attention_backend": "torch_sdpa:cudnn"}},
    **dict.fromkeys(("mega", "prim", "bridge"), dict.fromkeys(STACKS, _ENGINE)),
}
SOFTWARE = {
    "amd": {"software_version": "7.15.26300", "driver_version": "6.16.6", "pytorch_version": "2.12.0+rocm7.15"},
    "nvd": {"software_version": "13.0", "driver_version": "580.95.05", "pytorch_version": "2.12.0a0+nv26.08"},
}
OF_CPU = ("TORCHDYNAMO_DISABLE", "NCCL_IB_HCA")
"""Recorded variables that are not the image's: train/prim/environment.py sets them where there is no GPU."""
FRAMEWORKS = {"amd": ("mega", "hf", "prim"), "nvd": ("mega", "hf", "bridge")}
"""Frameworks that run in each vendor's image without NeMo 2."""


def told_of(platform: str, result: Mapping[str, Any], number: int, seconds: float) -> dict[str, Any]:
    """Return run `number` at `seconds` a step, with 0.2 % of noise, on the vendor's GPUs.

    Replaced: platform, device, software, memory, layers, the last digits of the losses, and what follows from the
    times. All else is as recorded.
    """
    told = copy.deepcopy(dict(result))
    random = np.random.default_rng([number, sum(map(ord, platform + told["framework"]))])
    told |= {"platform": platform, "run": number, "attempt": 1, "warnings": []}
    told["gpu_info"] |= DEVICES[platform] | SOFTWARE[platform] | {"software_stack": STACKS[platform], "reasons": {}}
    told["resolved_config"] |= LAYERS[told["framework"]][platform]
    told["step_times"] = [round(float(seconds * (1 + random.normal(0, 0.002))), 4) for _ in told["steps"]]
    if told["framework"] != "prim":  # two devices never round alike as one CPU does; Primus's losses are in its log
        told["loss_values"] = [float(loss * (1 + random.normal(0, 1e-4))) for loss in told["loss_values"]]
    if told["data_wait_seconds"]:
        told["data_wait_seconds"] = [0.0] * len(told["steps"])
        told["performance_metrics"]["data_wait_fraction"] = 0.0
    if "loop_seconds" in told["performance_metrics"]:
        told["performance_metrics"]["loop_seconds"] = round(sum(told["step_times"]), 3)
    told.pop("conditions", None)  # those of the machine of the tests, which has no GPU
    for name in OF_CPU:
        told["provenance"]["environment"].pop(name, None)
    told["provenance"]["host"] = f"{platform}-1"
    make_consistent(told, {"learning_rates", "gpu_info__device_count"})
    return told


def log_told_of(result: Mapping[str, Any], log: str) -> str:
    """Return the log of Primus with the times of a result that was told, to the 0.1 ms that Primus prints."""
    times = dict(zip(result["steps"], result["step_times"], strict=True))

    def line(match: re.Match[str]) -> str:
        step = int(match["step"])
        return f"{match['before']}{1000 * times[step]:.1f}{match['after']}" if step in times else match[0]

    told = re.sub(
        r"(?P<before> iteration +(?P<step>\d+)/.*? elapsed time per iteration \(ms\): )[\d.]+(/[\d.]+)?(?P<after>.*)",
        line,
        log,
    )
    return re.sub(r" tokens/s/GPU inst/harmonic mean: [\d./]+ +\|", "", told)
