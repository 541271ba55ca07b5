"""Origin of a result: commit, host, image, versions, and the environment variables that change speed.

Only values of variables with published names are put on record; any other variable may hold anything, and has a hash in
its place. evaluate/fairness/effects.py has the effects of their values. Sources of the names: NVIDIA, NCCL 2.27 user
guide "Environment Variables", CUDA C++ Programming Guide "CUDA Environment Variables", cuBLAS and cuDNN documentation,
TransformerEngine 2 "Environment variables"; AMD, HIP "Environment variables", ROCR-Runtime, RCCL usage tips, MIOpen
"Debugging and logging", hipBLASLt, Primus v25.10 `examples/run_pretrain.sh`; PyTorch 2.13 "Environment variables" and
`torch/_inductor/config.py`; Triton README "Tips for hacking"; GNU libgomp, glibc and OpenMP 5.2 chapter 21; Intel
oneMKL and oneDNN developer guides; OpenUCX 1.18 `ucx_info -cf`, the usual ones. Standard library only.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from utils.arguments import VERSION
from utils.frameworks import FRAMEWORKS
from utils.provenance.digests import sha256_code, sha256_files
from utils.redact import is_secret_name, json_value
from utils.settings.config import ROOT

_PACKAGES = ["torch", "megatron-core", "transformers", "accelerate", "transformer-engine", "numpy", "triton"]
for _framework in FRAMEWORKS.values():
    _PACKAGES += _framework.packages
PACKAGES = tuple(_PACKAGES)
_HASH = re.compile(r"sha256:[0-9a-f]{16}")
REPORT_FOLDERS = ("utils", "evaluate")
"""Folders of the code that makes a report of results."""
NO_COMMIT = "not a git checkout, or git cannot be asked"
NO_CONTAINER = "not in a container of ours"


def describe(command: str, started_utc: str, finished_utc: str) -> dict[str, Any]:
    """Return the `provenance` section of a result."""
    reasons: dict[str, str] = {}
    git_commit, dirty = commit(ROOT)
    # a null without a reason is no valid result
    if git_commit is None:
        reasons["git_commit"] = reasons["git_dirty"] = NO_COMMIT
    image, digest = os.environ.get("TPRIMAT_IMAGE") or None, os.environ.get("TPRIMAT_IMAGE_DIGEST") or None
    no_image = NO_CONTAINER
    if os.environ.get("TPRIMAT_IN_CONTAINER"):
        no_image = "what started the container did not tell"
    if image is None:
        reasons["image"] = no_image
    if digest is None:
        reasons["image_digest"] = no_image
    section: dict[str, Any] = {
        "suite_version": VERSION,
        "git_commit": git_commit,
        "git_dirty": dirty,
        "code_sha256": sha256_code(ROOT),
        "image": image,
        "image_digest": digest,
        "command": command,
        "host": platform.node(),
        "framework_versions": versions(),
        "environment": speed_variables(os.environ),
        "started_utc": started_utc,
        "finished_utc": finished_utc,
        "reasons": reasons,
    }
    hosts = os.environ.get("TPRIMAT_HOSTS")
    if hosts:  # of a job of several nodes
        section["hosts"] = hosts.split(",")
    return section


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect speed and numerics."""
    from importlib import metadata  # which a comparison does not need

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package) or "unknown"  # None where its own files lack it
    return found


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change the speed of a run, as they are put on record.

    A secret in a value is replaced, and a variable whose name means a secret is left out. A variable of an unpublished
    name has a hash in place of its value, by which two sides can be compared.
    """
    given = {}
    for name, value in sorted(environ.items()):
        if SPEED_VARIABLES.match(name) and not is_secret_name(name):
            given[name] = f"{name}={value}"  # the name tells how a value is read
    recorded = {}
    for name, assignment in json_value(given, environ).items():
        if name in given:  # the name itself may be a token
            recorded[name] = on_record(name, assignment.partition("=")[2])
    return recorded


def on_record(name: str, value: str) -> str:
    """Return a value without secrets as results hold it: itself for a published name, else `sha256:<16 hex digits>`.

    The hash only serves comparison: a short value can be found by trying. A hash stays as it is.
    """
    if name in KNOWN or _HASH.fullmatch(value):
        return value
    return f"sha256:{sha256(value.encode(errors='surrogateescape')).hexdigest()[:16]}"


def commit(root: Path, environ: Mapping[str, str] = os.environ) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout `root`, and True if tracked files differ from it; None, None without git.

    A container may have neither git nor the whole repository, so values determined outside come first
    (TPRIMAT_GIT_COMMIT and TPRIMAT_GIT_DIRTY of shell/lib/passed.sh).
    """
    import subprocess

    # an empty one too: outside there was no commit either
    if "TPRIMAT_GIT_COMMIT" in environ:
        is_dirty = {"true": True, "false": False}.get(environ.get("TPRIMAT_GIT_DIRTY", ""))
        return environ["TPRIMAT_GIT_COMMIT"] or None, is_dirty

    def git(*arguments: str) -> str:
        # a user of the container may not own the checkout
        command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    try:
        if git("rev-parse", "--show-prefix"):  # a copy inside another checkout has no commit of its own
            return None, None
        changes = git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.SubprocessError):
        return None, None


def sha256_report_code(root: Path) -> str:
    """Return one digest of names and contents of the code that makes reports; git is not needed."""
    files = []
    for folder in REPORT_FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files.append(path)
    return sha256_files(root, files)


_NAMES = {
    "NCCL": """
        ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE CHECK_POINTERS COLLNET_ENABLE
        COLLNET_NODE_THRESHOLD COMM_BLOCKING COMM_SHRINK_SHARE_RESOURCES COMM_SPLIT_SHARE_RESOURCES CONF_FILE
        CREATE_THREAD_CONTEXT CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE DEBUG_SUBSYS
        DMABUF_ENABLE GDRCOPY_ENABLE GRAPH_DUMP_FILE GRAPH_FILE GRAPH_MIXING_SUPPORT GRAPH_REGISTER HOSTID
        IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE IB_CUDA_SUPPORT IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC
        IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MERGE_VFS IB_MQP_RETRY_ALL IB_MQP_RETRY_CNT IB_PCI_RELAXED_ORDERING
        IB_PKEY IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL
        IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P L1_SHARED_MEMORY_CARVEOUT
        LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LL128_BUFFSIZE LL_BUFFSIZE LL_THRESHOLD LOCAL_REGISTER
        MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MIN_CTAS MIN_NCHANNELS MIN_NRINGS MIN_P2P_NCHANNELS
        MNNVL_CLIQUE_ID MNNVL_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY
        NET_DISABLE_INTRA NET_FORCE_FLUSH NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_PLUGIN
        NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLS_CHUNKSIZE NVLS_ENABLE
        NVLS_NCHANNELS OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_NET_CHUNKSIZE
        P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL PROFILER_PLUGIN PROGRESS_APPEND_OP_FREQ PROTO PXN_C2C
        PXN_DISABLE RAS_ENABLE RAS_TIMEOUT_FACTOR RINGS RUNTIME_CONNECT SET_CPU_STACK_SIZE SET_STACK_SIZE
        SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_MEMCPY_MODE SHM_USE_CUDA_MEMCPY SINGLE_RING_THRESHOLD
        SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT
        SOCKET_RETRY_SLEEP_MSEC SYM_CTAS THREAD_THRESHOLDS TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE
        TREE_THRESHOLD TUNER_CONFIG_PATH TUNER_PLUGIN WARN_ENABLE_DEBUG_INFO WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES
        WORK_FIFO_BYTES""",
    "RCCL": """
        ENABLE_CLIQUE ENABLE_HIPGRAPH KERNEL_COLL_TRACE_ENABLE LL128_FORCE_ENABLE MSCCLPP_ENABLE
        MSCCLPP_FORCE_ENABLED MSCCLPP_THRESHOLD MSCCL_ENABLE MSCCL_ENABLE_SINGLE_PROCESS MSCCL_FORCE_ENABLE
        MSCCLPP_FORCE_ENABLE P2P_NET_DISABLE WARP_SPEED_AUTO""",
    "NVTE": """
        ALLOW_NONDETERMINISTIC_ALGO APPLY_QK_LAYER_SCALING BATCH_MHA_P2P_COMM BIAS_DROPOUT_FUSION BIAS_GELU_NVFUSION
        BUILD_NUM_PHILOX_ROUNDS BWD_LAYERNORM_SM_MARGIN CK_HOW_V3_BF16_CVT CK_IS_V3_ATOMIC_FP32 CK_USES_BWD_V3
        CK_USES_FWD_V3 CK_ZERO_OUT_PAD CUDA_ARCHS DEBUG DEBUG_LEVEL DPA_FORCE_RECOMPUTE_FP8 DPA_FP8CS_O_in_F16
        FLASH_ATTN
        FORCE_ROPE_FUSION_FROM_FLASH_ATTN FP8_CALIBRATION FP8_DPA_BWD FRAMEWORK FUSED_ATTN FUSED_ATTN_AOTRITON
        FUSED_ATTN_BACKEND FUSED_ATTN_CK FUSED_ATTN_FORCE_WORKSPACE_OPT FUSED_ATTN_USE_FAv2_BWD
        FUSED_RING_ATTENTION_USE_SCAN FWD_LAYERNORM_SM_MARGIN INF_LAYERNORM_SM_MARGIN NORM_BWD_USE_CUDNN
        NORM_FWD_USE_CUDNN TORCH_COMPILE UNFUSED_ATTN USE_CAST_TRANSPOSE_TRITON USE_CUTLASS_GROUPED_GEMM
        USE_FAST_MATH USE_HIPBLASLT USE_LAYERNORM_TRITON USE_OPTIMIZED_HIPIFIED_CAST_TRANSPOSE USE_RMSNORM_TRITON
        USE_ROCM WITH_USERBUFFERS""",
    "HSA": """
        AMD_SDMA_ENABLE CU_MASK CU_MASK_SKIP_INIT DISABLE_CACHE DISABLE_FRAGMENT_ALLOCATOR ENABLE_DEBUG
        ENABLE_INTERRUPT ENABLE_IPC_MODE_LEGACY ENABLE_PEER_SDMA ENABLE_SCRATCH_ASYNC_RECLAIM ENABLE_SDMA
        FORCE_FINE_GRAIN_PCIE KERNARG_POOL_SIZE MAX_QUEUES NO_SCRATCH_RECLAIM OVERRIDE_GFX_VERSION SCRATCH_MEM
        SCRATCH_SINGLE_LIMIT TOOLS_LIB USE_SVM XNACK""",
    "HIP": """
        FORCE_DEV_KERNARG FORCE_NULL_STREAM_PRIORITY_HIGH HOST_COHERENT INITIAL_DM_SIZE LAUNCH_BLOCKING
        MEM_POOL_SUPPORT MEM_POOL_USE_VM PLATFORM SKIP_ABORT_ON_GPU_ERROR VISIBLE_DEVICES VMEM_MANAGE_SUPPORT""",
    "ROCR": "VISIBLE_DEVICES",
    "PYTORCH": """
        ALLOC_CONF CUDA_ALLOC_CONF CUDA_FUSER_DISABLE_FALLBACK HIP_ALLOC_CONF JIT MIOPEN_SUGGEST_NHWC
        MIOPEN_SUGGEST_NHWC_BATCHNORM NO_CUDA_MEMORY_CACHING NVML_BASED_CUDA_CHECK ROCM_ARCH TUNABLEOP_BLAS_ENABLED
        TUNABLEOP_ENABLED TUNABLEOP_FILENAME TUNABLEOP_HIPBLASLT_ENABLED TUNABLEOP_ICACHE_FLUSH_ENABLED
        TUNABLEOP_MAX_TUNING_DURATION_MS TUNABLEOP_MAX_TUNING_ITERATIONS TUNABLEOP_MAX_WARMUP_DURATION_MS
        TUNABLEOP_MAX_WARMUP_ITERATIONS TUNABLEOP_NUMERICAL_CHECK TUNABLEOP_RECORD_UNTUNED TUNABLEOP_ROCBLAS_ENABLED
        TUNABLEOP_ROTATING_BUFFER_SIZE TUNABLEOP_TUNING TUNABLEOP_VERBOSE""",
    "TORCH": """
        ALLOW_TF32_CUBLAS_OVERRIDE BLAS_PREFER_CUBLASLT BLAS_PREFER_HIPBLASLT COMPILE_DEBUG COMPILE_DISABLE
        CPP_LOG_LEVEL CUBLASLT_UNIFIED_WORKSPACE CUDA_ARCH_LIST CUDA_SANITIZER CUDNN_USE_HEURISTIC_MODE_B
        CUDNN_V8_API_DEBUG CUDNN_V8_API_DISABLED CUDNN_V8_API_LRU_CACHE_LIMIT DISABLE_ADDR2LINE DISTRIBUTED_DEBUG
        DIST_INIT_BARRIER FORCE_NO_WEIGHTS_ONLY_LOAD FORCE_WEIGHTS_ONLY_LOAD FR_BUFFER_SIZE GLOO_LAZY_INIT
        LINALG_PREFER_CUSOLVER LINALG_PREFER_HIPSOLVER LOGS MKLDNN_MATMUL_MIN_DIM NCCL_ASYNC_ERROR_HANDLING
        NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT NCCL_COORD_CHECK_MILSEC NCCL_CUDA_EVENT_CACHE
        NCCL_DEBUG_INFO_TEMP_FILE NCCL_DESYNC_DEBUG NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING
        NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_HIGH_PRIORITY NCCL_NAN_CHECK NCCL_PROPAGATE_ERROR NCCL_RETHROW_CUDA_ERRORS
        NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING NCCL_TRACE_BUFFER_SIZE NCCL_TRACE_CPP_STACK
        NCCL_USE_COMM_NONBLOCKING NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK NCCL_WAIT_TIMEOUT_DUMP_MILSEC NUM_THREADS
        ROCM_AOTRITON_ENABLE_EXPERIMENTAL ROCM_FA_PREFER_CK SHOW_CPP_STACKTRACES SYMM_MEM_ENABLE_NATIVE_ASYNC_TP""",
    "TORCHINDUCTOR": """
        AUTOGRAD_CACHE AUTOTUNE_IN_SUBPROC BENCHMARK_FUSION BENCHMARK_KERNEL CACHE_DIR COMPILE_THREADS
        COMPREHENSIVE_PADDING COORDINATE_DESCENT_TUNING CPP_WRAPPER CUDAGRAPHS DETERMINISTIC EMULATE_PRECISION_CASTS
        FORCE_DISABLE_CACHES FREEZING FX_GRAPH_CACHE GRAPH_PARTITION LAYOUT_OPTIMIZATION MAX_AUTOTUNE
        MAX_AUTOTUNE_CONV_BACKENDS MAX_AUTOTUNE_GEMM MAX_AUTOTUNE_GEMM_BACKENDS MAX_AUTOTUNE_GEMM_SEARCH_SPACE
        MAX_AUTOTUNE_POINTWISE MEMORY_PLANNING PERMUTE_FUSION PERSISTENT_REDUCTIONS SHAPE_PADDING SPLIT_REDUCTIONS
        UNIQUE_KERNEL_NAMES USE_FAST_MATH""",
    "TRITON": """
        ALWAYS_COMPILE CACHE_DIR CPU_BACKEND DEBUG DEFAULT_FP_FUSION DISABLE_LINE_INFO DUMP_DIR DUMP_PTXAS_LOG
        ENABLE_LLVM_DEBUG F32_DEFAULT HIP_USE_ASYNC_COPY HIP_USE_BLOCK_PINGPONG HOME INTERPRET KERNEL_DUMP
        KERNEL_OVERRIDE LIBCUDA_PATH OVERRIDE_DIR PRINT_AUTOTUNING PTXAS_PATH STORE_BINARY_ONLY""",
    "CUDA": """
        AUTO_BOOST BINARY_LOADER_THREAD_COUNT CACHE_DISABLE CACHE_MAXSIZE CACHE_PATH
        DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT DEVICE_MAX_CONNECTIONS DEVICE_MAX_COPY_CONNECTIONS
        DEVICE_ORDER DEVICE_WAITS_ON_EXCEPTION DISABLE_JIT DISABLE_PTX_JIT ENABLE_COREDUMP_ON_EXCEPTION FORCE_JIT
        FORCE_PRELOAD_LIBRARIES FORCE_PTX_JIT GRAPHS_USE_NODE_PRIORITY HOME LAUNCH_BLOCKING LOG_FILE
        MANAGED_FORCE_DEVICE_ALLOC MODULE_DATA_LOADING MODULE_LOADING MPS_ACTIVE_THREAD_PERCENTAGE
        MPS_CLIENT_PRIORITY MPS_LOG_DIRECTORY MPS_PIPE_DIRECTORY PATH SCALE_LAUNCH_QUEUES VERSION VISIBLE_DEVICES""",
    "CUDNN": "FORCE_KERNEL_INIT HOME LOGDEST_DBG LOGERR_DBG LOGINFO_DBG LOGLEVEL_DBG LOGWARN_DBG VERSION",
    "CUBLAS": """
        EMULATE_DOUBLE_PRECISION EMULATE_SINGLE_PRECISION EMULATION_STRATEGY LOGDEST_DBG LOGINFO_DBG
        WORKSPACE_CONFIG""",
    "CUBLASLT": "HEURISTICS_CACHE_CAPACITY LOG_FILE LOG_LEVEL LOG_MASK WORKSPACE_SIZE",
    "ROCBLAS": """
        CHECK_NUMERICS DEFAULT_ATOMICS_MODE DEVICE_MEMORY_SIZE INTERNAL_FP16_ALT_IMPL LAYER STREAM_ORDER_ALLOC
        TENSILE_LIBPATH USE_HIPBLASLT""",
    "HIPBLASLT": "LOG_LEVEL LOG_MASK TENSILE_LIBPATH TUNING_FILE TUNING_OVERRIDE_FILE WORKSPACE_SIZE",
    "MIOPEN": """
        CHECK_NUMERICS COMPILE_PARALLEL_LEVEL CONVOLUTION_MAX_WORKSPACE CUSTOM_CACHE_DIR DEBUG_CONV_DIRECT
        DEBUG_CONV_FFT DEBUG_CONV_GEMM DEBUG_CONV_IMPLICIT_GEMM DEBUG_CONV_WINOGRAD DEBUG_DISABLE_FIND_DB
        DISABLE_CACHE ENABLE_LOGGING ENABLE_LOGGING_CMD FIND_ENFORCE FIND_MODE LOG_LEVEL SYSTEM_DB_PATH USER_DB_PATH""",
    "AMD": "DIRECT_DISPATCH LOG_LEVEL LOG_MASK SERIALIZE_COPY SERIALIZE_KERNEL TENSILE_LIBPATH",
    "OMP": """
        AFFINITY_FORMAT CANCELLATION DEFAULT_DEVICE DISPLAY_AFFINITY DISPLAY_ENV DYNAMIC MAX_ACTIVE_LEVELS
        MAX_TASK_PRIORITY NESTED NUM_TEAMS NUM_THREADS PLACES PROC_BIND SCHEDULE STACKSIZE TARGET_OFFLOAD
        TEAMS_THREAD_LIMIT THREAD_LIMIT WAIT_POLICY""",
    "GOMP": "CPU_AFFINITY DEBUG SPINCOUNT STACKSIZE",
    "MKL": """
        CBWR DEBUG_CPU_TYPE DISABLE_FAST_MM DOMAIN_NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS FAST_MEMORY_LIMIT
        INTERFACE_LAYER NUM_STRIPES NUM_THREADS NUM_THREADS_LOCAL SERVICE_FORCE_INTEL THREADING_LAYER VERBOSE""",
    "KMP": """
        AFFINITY ALL_THREADS BLOCKTIME DETERMINISTIC_REDUCTION DUPLICATE_LIB_OK FORCE_REDUCTION HW_SUBSET
        INIT_AT_FORK LIBRARY SETTINGS STACKSIZE TPAUSE WARNINGS""",
    "OPENBLAS": "CORETYPE DEFAULT_NUM_THREADS MAIN_FREE NUM_THREADS VERBOSE",
    "ONEDNN": "DEFAULT_FPMATH_MODE JIT_PROFILE MAX_CPU_ISA PRIMITIVE_CACHE_CAPACITY VERBOSE CPU_ISA_HINTS",
    "DNNL": "DEFAULT_FPMATH_MODE JIT_PROFILE MAX_CPU_ISA PRIMITIVE_CACHE_CAPACITY VERBOSE",
    "MALLOC": "ARENA_MAX ARENA_TEST CHECK_ MMAP_MAX_ MMAP_THRESHOLD_ PERTURB_ TOP_PAD_ TRIM_THRESHOLD_ CONF",
    "PRIMUS": """
        DETERMINISTIC DISABLE_TORCH_COMPILE EXIT_FAST GLOBAL_SEED HIPBLASLT_TUNING HIPBLASLT_TUNING_STAGE
        INSTALL_DEPS PATH TURBO_AUTO_TUNE TURBO_DEEPEP_TIMEOUT""",
    "UB": "MAX_SM SKIPMC TIMEOUT",
    "UCX": """
        CUDA_COPY_DMABUF CUDA_IPC_CACHE GDR_COPY_RCACHE GID_INDEX HANDLE_ERRORS IB_GID_INDEX IB_GPU_DIRECT_RDMA
        IB_PCI_RELAXED_ORDERING IB_SL IB_TRAFFIC_CLASS LOG_FILE LOG_LEVEL MAX_EAGER_RAILS MAX_RNDV_RAILS
        MEMTYPE_CACHE MEM_MMAP_HOOK_MODE NET_DEVICES PROTO_ENABLE RC_TIMEOUT RNDV_SCHEME RNDV_THRESH
        SOCKADDR_TLS_PRIORITY TLS UNIFIED_MODE WARN_UNUSED_ENV_VARS ZCOPY_THRESH""",
    "GLOO": "DEVICE_TRANSPORT LOG_LEVEL SOCKET_IFNAME",
}
_OTHER_NAMES = """
    NVIDIA_TF32_OVERRIDE ATEN_CPU_CAPABILITY GPU_MAX_HW_QUEUES TOKENIZERS_PARALLELISM XLA_FLAGS LD_PRELOAD
    TORCH_EXTENSIONS_DIR TORCH_HOME FLASH_ATTENTION_DETERMINISTIC ROC_GLOBAL_CU_MASK TORCHDYNAMO_DISABLE
    AMD_COMGR_CACHE AMD_COMGR_CACHE_DIR CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT CUDA_DRIVER_VERSION GPU_ARCHS
    GPU_DEVICE_ORDINAL HIP_ARCHITECTURES HIP_CLANG_PATH HIP_DEVICE_LIB_PATH HIP_INCLUDE_PATH HIP_LIB_PATH HIP_PATH
    NCCL_VERSION NVTE_FUSED_ATTN_LOG_CONFIG NVTE_ROCM_ARCH NVTE_ROCM_ENABLE_MXFP8 PRIMUS_CACHE_ROOT PRIMUS_GPU_MODEL
    PRIMUS_IMPORT_ROOT PRIMUS_SKIP_PIP PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32 PYTORCH_BUILD_NUMBER PYTORCH_BUILD_VERSION
    PYTORCH_HOME PYTORCH_KERNEL_CACHE_PATH PYTORCH_VERSION UCX_HOME UCX_INSTALL_DIR UCX_VERSION"""

Runs = Literal["always", "never", "gpu", "nvidia", "amd", "collectives", "rccl", "engine", "primus", "nodes"]
"""Condition under which the library that reads a variable runs in a job (evaluate/fairness/environment.py)."""
READERS: dict[str, Runs] = {
    **dict.fromkeys(("PYTORCH", "TORCH", "TORCHINDUCTOR", "TORCHDYNAMO", "TRITON", "GLOO", "LD_PRELOAD"), "always"),
    **dict.fromkeys(("OMP", "GOMP", "MKL", "KMP", "OPENBLAS", "ONEDNN", "DNNL", "MALLOC", "ATEN_CPU"), "always"),
    **dict.fromkeys(("CUDA", "FLASH_ATTENTION"), "gpu"),
    **dict.fromkeys(("CUDNN", "CUBLAS", "CUBLASLT", "NVIDIA_TF32"), "nvidia"),
    **dict.fromkeys(("HSA", "HIP", "ROCR", "ROC", "GPU", "AMD", "ROCBLAS", "HIPBLASLT", "AITER", "CK"), "amd"),
    **dict.fromkeys(("NVTE", "TE", "UB"), "engine"),  # TransformerEngine, its user buffers
    "NCCL": "collectives",  # RCCL reads these names too
    "RCCL": "rccl",
    "UCX": "nodes",
    "PRIMUS": "primus",
    "TOKENIZERS": "never",  # the text is tokenized before a job starts
    "MIOPEN": "never",  # convolutions; the models here have none
    "XLA": "never",  # JAX
}
"""Condition by the beginning of a name, which an underscore follows."""
SPEED_VARIABLES = re.compile(rf"({'|'.join(READERS)})(_|$)")
"""Names that are recorded; shell/lib/passed.sh has the same expression."""

KNOWN = frozenset(
    (*(f"{prefix}_{name}" for prefix, names in _NAMES.items() for name in names.split()), *_OTHER_NAMES.split())
)
"""Names whose values are put on record, without secrets in them."""
