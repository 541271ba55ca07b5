"""The environment in which Primus starts: AMD's own benchmark settings, without this suite's Python.

Primus's launcher keeps the variables that are set here and sets others itself; those that it prints are recorded too.
The user's variables are those that train/launch.py has passed to this process: those of all ranks, and LAUNCHER_NAMES.

On a machine without a GPU the same launcher, YAML, log reader and checks are used; every difference is here and in
train/prim/on_cpu/. The settings map already turns off the fused operations that a CPU does not have; Primus prints all
values that it used, so the result records the differences.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.errors import ConfigError
from utils.settings.config import ROOT, RunConfig

AMD_BENCHMARK = {
    # ROCm/MAD, primus_megatron-lm_benchmark_report.sh; examples/run_pretrain.sh of v25.10 would leave both at 0
    "HSA_NO_SCRATCH_RECLAIM": "1",
    "NVTE_CK_USES_BWD_V3": "1",
}
AMD_BENCHMARK_GFX942 = {
    # the same script, its later versions, for MI300X and MI325X
    "PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32": "1",
    "NVTE_CK_IS_V3_ATOMIC_FP32": "1",
}
GFX942 = ("MI300X", "MI325X")
LAUNCHER_NAMES = (
    "DATA_PATH",
    "BACKEND_PATH",
    "IP_INTERFACE",
    "ENABLE_NUMA_BINDING",
    "PATCH_TE_FLASH_ATTN",
    "USING_AINIC",
    "ANP_HOME_DIR",
    "MPI_HOME_DIR",
    "REBUILD_PRIMUS_TURBO",
    "REBUILD_BNXT",
    "PATH_TO_BNXT_TAR_PACKAGE",
    # its `pip install -r requirements.txt` before each training
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
)
"""Variables that the launchers of Primus and their pip read, and no other framework."""
CACHES = {
    # below HOME, because Primus's own defaults are in its root and in /workspace, which belong to root in AMD's image;
    # the launchers put Triton's and all other caches below PRIMUS_CACHE_ROOT
    "PRIMUS_CACHE_ROOT": "primus",
    "DATA_PATH": "primus/data",
    "HF_HOME": "huggingface",
}
"""Folders in the user's cache that Primus's launchers write to, by variable."""
OURS = ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "VIRTUAL_ENV")
ON_CPU = ROOT / "train" / "prim" / "on_cpu"
"""Folder of sitecustomize.py, which redirects CUDA calls to the CPU in each rank of Primus."""
CPU_OVERRIDES: Mapping[str, Any] = {
    "transformer_impl": "local",  # TransformerEngine has no kernels for a CPU
    "no_persist_layer_norm": True,  # Apex's kernel
    "moe_permute_fusion": False,  # TransformerEngine's kernels
    "overlap_p2p_comm": False,  # gloo sends one message at a time
}
"""Keys of the YAML that a CPU needs, beside those of the settings map."""


def environment(
    config: RunConfig, gpu: str, of_launcher: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment for Primus's launcher; the user's variables precede those of AMD's benchmark.

    `gpu` is a name like MI300X, `of_launcher` holds the variables by which the launcher gets its files. An image and
    the environment for a CPU are complete, so the launcher's pip is off there. On one machine the port is a free one,
    so that jobs do not collide; Primus's own is always 1234.
    """
    from torch.distributed.elastic.utils.distributed import get_free_port

    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    recommended = {name: str(cache / folder) for name, folder in CACHES.items()}
    if config.platform == "cpu" or "TPRIMAT_IN_CONTAINER" in environ:
        # the launcher would install its requirements anew before each training
        recommended["PRIMUS_SKIP_PIP"] = "1"
    if config.platform != "cpu":
        recommended |= AMD_BENCHMARK
    if config.platform != "cpu" and gpu in GFX942:
        recommended |= AMD_BENCHMARK_GFX942
    address, port = config.master_addr, config.master_port
    if config.nodes == 1:
        address, port = "localhost", get_free_port()
    ours = {
        "NNODES": str(config.nodes),
        "NODE_RANK": str(config.node_rank),
        "GPUS_PER_NODE": str(config.ranks_per_node),
        "MASTER_ADDR": str(address),
        "MASTER_PORT": str(port),
    }
    return recommended | _without_ours(environ) | dict(of_launcher) | ours


def check_visible(gpus: int, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError where the visible devices are set to others than the first ones.

    Both launchers of Primus always set HIP_VISIBLE_DEVICES to 0..N-1.
    """
    first = ",".join(str(gpu) for gpu in range(gpus))
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if name in environ and environ[name] != first:
            raise ConfigError(
                f"{name}={environ[name]}: Primus's launcher takes GPUs {first} whatever is set; choose GPUs with "
                f"ROCR_VISIBLE_DEVICES and unset {name}"
            )


def _without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the paths to our modules: Primus has `utils`, `train` and `data` of its own."""
    kept = {name: value for name, value in environ.items() if name not in OURS}
    modules = [entry for entry in _foreign(environ, "PYTHONPATH") if entry]
    if modules:
        kept["PYTHONPATH"] = os.pathsep.join(modules)
    kept["PATH"] = os.pathsep.join(_foreign(environ, "PATH"))
    return kept


def _foreign(environ: Mapping[str, str], name: str) -> list[str]:
    """Return the entries of a path variable that are not below our checkout."""
    entries = environ.get(name, "").split(os.pathsep)
    return [entry for entry in entries if not Path(entry).absolute().is_relative_to(ROOT)]


def cpu_environment(python: Path, workspace: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that Primus's launcher needs on a CPU.

    `python` is the interpreter of its environment, whose folder also holds torchrun; `workspace` is the folder of
    Primus's own files.
    """
    rocm = workspace / "no_rocm"
    (rocm / "lib").mkdir(parents=True, exist_ok=True)
    return {
        "PATH": os.pathsep.join([str(python.parent), environ.get("PATH", "")]),
        "PYTHONPATH": str(ON_CPU),
        "ROCM_HOME": str(rocm),  # primus-cli ends where there is no folder of ROCm libraries
        "TORCHDYNAMO_DISABLE": "1",  # its compiled helpers would be compiled for a GPU
        "NCCL_IB_HCA": "none",  # else it looks for InfiniBand, which gloo does not use
        "IP_INTERFACE": environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
