"""Origin of a result: commit, host, image, versions, and the environment variables that change speed."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from utils.provenance import checkout
from utils.provenance.digests import sha256_code
from utils.settings.config import ROOT

SPEED_VARIABLES = re.compile(
    r"(NCCL|RCCL|NVTE|HSA|HIP|ROCR|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|CUDA|CUDNN|CUBLAS|CUBLASLT|ROCBLAS|HIPBLASLT"
    r"|MIOPEN|AMD|OMP|GOMP|MKL|KMP|OPENBLAS|ONEDNN|DNNL|MALLOC|TE|PRIMUS|UB|UCX|GLOO)_"
    r"|NVIDIA_TF32_OVERRIDE|ATEN_CPU_CAPABILITY|GPU_MAX_HW_QUEUES|TOKENIZERS_PARALLELISM|XLA_FLAGS|LD_PRELOAD"
)
SECRET = re.compile(r"TOKEN(?!IZER)|SECRET|PASSW|CREDENTIAL|(^|_)(API)?KEYS?(_|$)", re.IGNORECASE)
PACKAGES = (
    *("torch", "megatron-core", "transformers", "accelerate", "transformer-engine", "numpy", "triton"),
    *("nemo-toolkit", "nemo_run", "lightning"),
)
NO_CONTAINER = "not in a container of ours"


def describe(command: str, started_utc: str, finished_utc: str) -> dict[str, Any]:
    """Return the `provenance` section of a result."""
    reasons: dict[str, str] = {}
    commit, dirty = checkout.commit(ROOT)
    if commit is None:
        reasons |= dict.fromkeys(("git_commit", "git_dirty"), checkout.NO_COMMIT)
    image, digest = os.environ.get("TPRIMAT_IMAGE"), os.environ.get("TPRIMAT_IMAGE_DIGEST")
    where = "what started the container did not tell" if os.environ.get("TPRIMAT_IN_CONTAINER") else NO_CONTAINER
    reasons |= {key: where for key, value in (("image", image), ("image_digest", digest)) if not value}
    return {
        "git_commit": commit,
        "git_dirty": dirty,
        "code_sha256": sha256_code(ROOT),
        "image": image or None,
        "image_digest": digest or None,
        "command": command,
        "host": platform.node(),
        **({"hosts": hosts.split(",")} if (hosts := os.environ.get("TPRIMAT_HOSTS")) else {}),
        "framework_versions": versions(),
        "environment": speed_variables(os.environ),
        "started_utc": started_utc,
        "finished_utc": finished_utc,
        "reasons": reasons,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect speed and numerics."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change the speed of a run; never one that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if SPEED_VARIABLES.match(name) and not SECRET.search(name)
    }
