"""Primus on a machine without a GPU: every difference from a run on AMD GPUs is here and in train/prim/on_cpu/.

The same launcher, YAML, log reader and checks are used as on AMD GPUs. The settings map already turns off the fused
operations that a CPU does not have; Primus prints all values that it used, so the result records the differences.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils.settings.config import ROOT

ON_CPU = ROOT / "train" / "prim" / "on_cpu"
"""Folder of sitecustomize.py, which redirects CUDA calls to the CPU in each rank of Primus."""
OVERRIDES: Mapping[str, Any] = {
    "transformer_impl": "local",  # TransformerEngine has no kernels for a CPU
    "no_persist_layer_norm": True,  # Apex's kernel
    "moe_permute_fusion": False,  # TransformerEngine's kernels
    "overlap_p2p_comm": False,  # gloo sends one message at a time
}
"""Keys of the YAML that a CPU needs, beside those of the settings map."""


def environment(python: Path, workspace: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
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
