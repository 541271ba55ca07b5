"""The environment of the ranks: their Python, and variables of known names and prefixes, none that may hold a secret.

A variable that is not listed here, and that is not recorded as one that changes the speed (SPEED_VARIABLES of
utils/provenance/origin.py), is not passed, so a secret under any other name stays out. The lists hold what processes,
Python, torchrun, the frameworks and the vendors' libraries read; each group names its source or its readers.
ENV_NAMES adds names of the user's own. A variable on a list is withheld if the name means a secret, or if
utils/redact.py finds one in the value. The launcher records the names (`provenance.environment_passed`,
`environment_withheld`).
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from utils import redact
from utils.errors import ConfigError
from utils.provenance.origin import SPEED_VARIABLES
from utils.settings.config import ROOT

ERROR = "error: "
ENV_NAMES = "TPRIMAT_ENV_NAMES"
"""Variable with more names to pass, to containers and ranks: `NAME,NAME`."""
NAMES = frozenset(
    (
        # processes and terminals: environ(7), ld.so(8), glibc's manual
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TMP",
        "TEMP",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "LD_BIND_NOW",
        "GLIBC_TUNABLES",
        "TERM",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        # Python and its environments: python(1), venv, conda; caches of packages that NeMo imports
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "MPLCONFIGDIR",
        "NUMBA_CACHE_DIR",
        # compilers, for torch.compile, Triton and extensions: torch/_inductor, torch/utils/cpp_extension.py
        "CC",
        "CXX",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
        "MAX_JOBS",
        # torchrun and torch.distributed: torch/distributed/run.py and rendezvous.py
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "LOGLEVEL",
        "USE_LIBUV",
        # CPU kernels and profilers of torch: ATen/cpu, torch/profiler
        "ATEN_CPU_CAPABILITY",
        "TEARDOWN_CUPTI",
        "DISABLE_CUPTI_LAZY_REINIT",
        # caches and offline mode of huggingface_hub, datasets and tokenizers; never its tokens or its address
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_DATASETS_CACHE",
        "HF_DATASETS_OFFLINE",
        "HF_MODULES_CACHE",
        "TOKENIZERS_PARALLELISM",
        "XLA_FLAGS",
        # this suite: shell/lib/passed.sh, train/slurm.py, train/job/nodes.py, train/prim/install.py
        "PLATFORM",
        "GPUS_PER_NODE",
        "TPRIMAT_MACHINE",
        "TPRIMAT_HOSTS",
        "TPRIMAT_IN_CONTAINER",
        "TPRIMAT_IMAGE",
        "TPRIMAT_IMAGE_DIGEST",
        "TPRIMAT_GIT_COMMIT",
        "TPRIMAT_GIT_DIRTY",
        "TPRIMAT_SYSROOT",
        ENV_NAMES,
    )
)
PREFIXES = (
    "LC_",
    "PYTHON",
    # cores and memory of the host: OpenMP, MKL, BLAS, allocators
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "BLIS_",
    "NUMEXPR_",
    "NVPL_",
    "MALLOC_",
    "TCMALLOC_",
    # torch, its compilers and its profiler
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "GLOO_",
    "KINETO_",
    "AOT",
    # NVIDIA: CUDA and its libraries, NCCL, TransformerEngine, profilers, driver and container
    "CUDA",
    "CUBLAS",
    "CUDNN",
    "NVIDIA_",
    "NCCL_",
    "NVTE_",
    "NVSHMEM_",
    "NSYS_",
    "CUPTI_",
    "SHARP_",
    "NVTX_INJECTION",
    "QUADD_INJECTION",  # by which nsys follows child processes
    # AMD: ROCm and its libraries, RCCL, Composable Kernel, AITER, profilers
    "HIP",
    "HSA_",
    "ROC",
    "RCCL_",
    "MIOPEN_",
    "AMD_",
    "AMDGPU_",
    "GPU_",
    "TENSILE_",
    "CK_",
    "AITER_",
    "RSMI_",
    # networks: UCX, UCC, libfabric, OpenMPI and HPC-X, PMI, libibverbs, Slingshot, MSCCL++
    "UCX_",
    "UCC_",
    "FI_",
    "OMPI_",
    "OPAL_",
    "HPCX_",
    "PMI_",
    "PMIX_",
    "IBV_",
    "MLX5_",
    "SLINGSHOT_",
    "MSCCLPP_",
    # frameworks: Megatron-core and attention kernels, NeMo, Primus, transformers, accelerate, Lightning's Slurm plug-in
    "MEGATRON_",
    "FLASH_ATT",
    "NEMO",
    "PRIMUS_",
    "TRANSFORMERS_",
    "ACCELERATE_",
    "SLURM_",
)


@dataclass(frozen=True)
class Selected:
    """The variables that are passed, and the names of those that only a possible secret keeps out."""

    variables: dict[str, str]
    withheld: tuple[str, ...]

    def warnings(self, receiver: str = "the ranks") -> list[str]:
        """Return one line with the names that are withheld, without their values; an empty list if there are none."""
        if not self.withheld:
            return []
        names = redact.text(", ".join(self.withheld))
        return [f"environment: not passed to {receiver}, because name or value looks like a secret: {names}"]


def select(environ: Mapping[str, str], names: Iterable[str] = (), prefixes: Iterable[str] = ()) -> Selected:
    """Return the variables that may be passed to ranks, also those of further `names` and `prefixes`, and the names of
    those that are withheld.

    Raises ConfigError for an ENV_NAMES that is no list of names.
    """
    requested = [name for name in environ.get(ENV_NAMES, "").split(",") if name]
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in requested):
        raise ConfigError(f"{ENV_NAMES}: wanted names of variables without values, e.g. {ENV_NAMES}=NAME,NAME")
    allowed = NAMES.union(names, requested)
    beginnings = (*PREFIXES, *prefixes)
    passed, withheld = {}, []
    for name, value in sorted(environ.items()):
        if not (name in allowed or name.startswith(beginnings) or SPEED_VARIABLES.match(name)):
            continue
        if _may_be_secret(name, value, environ):
            # its name is recorded, so that a missing variable can be explained
            withheld.append(name)
        else:
            passed[name] = value
    return Selected(passed, tuple(withheld))


def _may_be_secret(name: str, value: str, environ: Mapping[str, str]) -> bool:
    is_named_so = value != "" and redact.SECRET_NAME.search(name) is not None
    return is_named_so or any(redact.text(text, environ) != text for text in (name, value))


@functools.cache
def python_of(name: str, platform: str) -> str:
    """Return the Python that has framework `name`; its setup script makes the environment on first use, in minutes.

    The script imports what the trainer imports, which takes seconds, so it runs once in a process. Its other output is
    passed on to stderr. Raises ConfigError with the script's reason where there is no such Python and none can be made.
    """
    setup = ROOT / "shell" / "inside" / "setup_framework.sh"
    environment = {**os.environ, "PLATFORM": platform}
    pipe = subprocess.PIPE
    with subprocess.Popen([str(setup), name], env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        reason = f"{name}: {setup} failed without a reason"
        for line in process.stderr:
            if line.startswith(ERROR):
                reason = line.removeprefix(ERROR).strip()
            else:
                print(line, end="", file=sys.stderr, flush=True)
        path = process.stdout.read().strip()
    if process.returncode != 0:
        raise ConfigError(reason)
    return path
