"""Effects on speed: of environment variables, one row for the values of some of them, and the order of all items.

Each row has its source. A value that no row names is not judged (environment.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

NO_EFFECT, MEANS, HANDICAP, NOT_JUDGED = "no effect", "means", "handicap", "not judged"


class Effect(NamedTuple):
    """One row of the table: the effect of values of some variables on a job."""

    names: str
    """Names, separated by spaces."""
    values: str
    """Values as `canonical` writes them, separated by spaces; `*` is any."""
    kind: str
    note: str
    """The effect with its source, or the recipe of a vendor that sets the value."""
    platform: str = ""
    """Platform on which the row holds; empty for all."""
    beside: str = ""
    """`NAME=value` of the same recipe, `*` for any value: without it the row does not hold."""
    precision: str = ""
    """Precision of the training in which the row holds; empty for all."""

    def holds(self, value: str, platform: str, precision: str) -> bool:
        """Return whether the row is about a value on a platform in a precision."""
        if self.platform not in ("", platform) or self.precision not in ("", precision):
            return False
        return "*" in self.values or value in self.values.split()


_CHECKS = "TORCH_NCCL_AVOID_RECORD_STREAMS=1"
_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=*"
"""Of the same recipe; from torch 2.8 on, what the other variable turns on is the default, and it is not set."""
_IMAGE = "AMD's image sets it (rocm/primus v26.4 to v26.5.1, Dockerfile)"
_LAUNCHER = "AMD's own launcher has it (Primus, examples/run_pretrain.sh and runner/helpers/envs/base_env.sh)"
_BRIDGE = "NVIDIA's own recipes have it (Megatron-Bridge 0.6.2, perf_recipes and recipes/utils/environment_utils.py)"
_NEMO = "NVIDIA's own recipe has it (NeMo 2.3, scripts/performance; Megatron-Bridge 0.6.2)"
_MASKED = "some of the compute units are left out"

EFFECTS: tuple[Effect, ...] = (
    # places, builds, choice of devices, messages: nothing of it runs in a step
    Effect(
        "CUDA_VERSION CUDA_DRIVER_VERSION CUDA_HOME CUDA_PATH CUDNN_VERSION CUDNN_HOME NCCL_VERSION PYTORCH_VERSION "
        "PYTORCH_HOME PYTORCH_BUILD_VERSION PYTORCH_BUILD_NUMBER PYTORCH_ROCM_ARCH TORCH_CUDA_ARCH_LIST TORCH_HOME "
        "TORCH_EXTENSIONS_DIR PYTORCH_KERNEL_CACHE_PATH TORCHINDUCTOR_CACHE_DIR TORCHINDUCTOR_COMPILE_THREADS "
        "TRITON_CACHE_DIR TRITON_HOME TRITON_PTXAS_PATH CUDA_CACHE_PATH CUDA_CACHE_MAXSIZE GPU_ARCHS HIP_PATH "
        "HIP_PLATFORM HIP_CLANG_PATH HIP_INCLUDE_PATH HIP_LIB_PATH HIP_DEVICE_LIB_PATH HIP_ARCHITECTURES "
        "AMD_COMGR_CACHE AMD_COMGR_CACHE_DIR NVTE_FRAMEWORK NVTE_USE_ROCM NVTE_ROCM_ARCH NVTE_CUDA_ARCHS "
        "NVTE_BUILD_NUM_PHILOX_ROUNDS CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT UCX_HOME UCX_INSTALL_DIR UCX_VERSION "
        "PRIMUS_PATH PRIMUS_IMPORT_ROOT PRIMUS_CACHE_ROOT PRIMUS_SKIP_PIP PRIMUS_INSTALL_DEPS PRIMUS_EXIT_FAST "
        "PRIMUS_GPU_MODEL PRIMUS_GLOBAL_SEED",
        "*",
        NO_EFFECT,
        "a version, an architecture to build for, or the place of a file or a cache",
    ),
    Effect(
        "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL",
        "*",
        NO_EFFECT,
        "a choice of devices, which the result names",
    ),
    Effect("CUDA_MODULE_LOADING", "*", NO_EFFECT, "kernels are loaded in the excluded steps (CUDA documentation)"),
    Effect(
        "NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE TORCH_CPP_LOG_LEVEL TORCH_SHOW_CPP_STACKTRACES TORCH_DISABLE_ADDR2LINE "
        "TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC "
        "TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_FR_BUFFER_SIZE "
        "TORCH_NCCL_PROPAGATE_ERROR TORCH_NCCL_RETHROW_CUDA_ERRORS TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC "
        "TORCH_NCCL_COORD_CHECK_MILSEC TORCH_DIST_INIT_BARRIER PRIMUS_TURBO_DEEPEP_TIMEOUT",
        "*",
        NO_EFFECT,
        "messages and time limits (PyTorch documentation)",
    ),
    Effect("KMP_DUPLICATE_LIB_OK KMP_INIT_AT_FORK", "0 1", NO_EFFECT, "set by scikit-learn (sklearn/__init__.py)"),
    Effect("NCCL_DEBUG", "version warn info", NO_EFFECT, "messages at the start (NCCL documentation)"),
    Effect("NVTE_DEBUG NVTE_DEBUG_LEVEL NVTE_FUSED_ATTN_LOG_CONFIG AMD_LOG_LEVEL", "0", NO_EFFECT, "the default"),
    Effect("NVTE_FLASH_ATTN NVTE_FUSED_ATTN NVTE_UNFUSED_ATTN", "1", NO_EFFECT, "the default of TransformerEngine"),
    Effect("TORCH_NCCL_USE_COMM_NONBLOCKING", "0", NO_EFFECT, "the default of PyTorch"),
    Effect("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "0", NO_EFFECT, "the default of PyTorch"),
    Effect("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100", NO_EFFECT, "the default of CUDA's MPS"),
    Effect("PRIMUS_DETERMINISTIC", "0", NO_EFFECT, "the default of Primus"),
    # TF32: only products of float32 numbers have it
    Effect(
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "1",
        HANDICAP,
        "32-bit matrix products are made with fewer bits (PyTorch, aten/src/ATen/Context.h)",
        precision="fp32",
    ),
    Effect("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "*", NO_EFFECT, "it matters for 32-bit matrix products only"),
    Effect(
        "NVIDIA_TF32_OVERRIDE", "1", HANDICAP, "32-bit matrix products are made with fewer bits (cuBLAS documentation)"
    ),
    # vendors' recipes
    Effect("NVTE_FLASH_ATTN", "0", MEANS, _IMAGE, "amd", "NVTE_FUSED_ATTN=1"),
    Effect("NVTE_UNFUSED_ATTN", "0", MEANS, "TransformerEngine may not take the composed kernel"),
    Effect(
        "HSA_NO_SCRATCH_RECLAIM NVTE_USE_HIPBLASLT NVTE_CK_USES_FWD_V3 NVTE_CK_USES_BWD_V3 "
        "NVTE_USE_CAST_TRANSPOSE_TRITON",
        "1",
        MEANS,
        _IMAGE,
        "amd",
    ),
    Effect("HSA_ENABLE_SCRATCH_ASYNC_RECLAIM", "0", MEANS, _IMAGE, "amd"),
    Effect("NVTE_CK_HOW_V3_BF16_CVT", "2", MEANS, _IMAGE, "amd"),
    Effect(
        "NVTE_CK_IS_V3_ATOMIC_FP32 PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32",
        "0 1",
        MEANS,
        "AMD's image sets 0, its benchmark of the MI300X 1 (ROCm/MAD, primus_megatron-lm_benchmark_report.sh)",
        "amd",
    ),
    *(
        Effect(f"RCCL_{name}_ENABLE", "0", MEANS, _LAUNCHER, "amd", "NCCL_CHECKS_DISABLE=1")
        for name in ("MSCCL", "MSCCLPP")
    ),
    Effect(
        "NCCL_CHECKS_DISABLE HSA_ENABLE_SDMA TORCH_NCCL_HIGH_PRIORITY CUDA_DEVICE_MAX_CONNECTIONS "
        "NVTE_ROCM_ENABLE_MXFP8",
        "1",
        MEANS,
        _LAUNCHER,
        "amd",
    ),
    Effect(
        "NCCL_CROSS_NIC NVTE_USE_OPTIMIZED_HIPIFIED_CAST_TRANSPOSE RCCL_MSCCLPP_FORCE_ENABLE "
        "RCCL_MSCCLPP_FORCE_ENABLED RCCL_WARP_SPEED_AUTO",
        "0",
        MEANS,
        _LAUNCHER,
        "amd",
    ),
    Effect("NCCL_PXN_DISABLE", "0 1", MEANS, _LAUNCHER, "amd"),
    Effect("GPU_MAX_HW_QUEUES", "2", MEANS, _LAUNCHER, "amd"),
    Effect("RCCL_MSCCLPP_THRESHOLD", "1073741824", MEANS, _LAUNCHER, "amd"),
    Effect("NCCL_P2P_NET_CHUNKSIZE", "524288", MEANS, _LAUNCHER, "amd"),
    Effect("HIPBLASLT_TUNING_FILE", "*", MEANS, _LAUNCHER, "amd"),
    Effect(
        "PRIMUS_TURBO_AUTO_TUNE PRIMUS_HIPBLASLT_TUNING PRIMUS_HIPBLASLT_TUNING_STAGE", "*", MEANS, _LAUNCHER, "amd"
    ),
    Effect("NCCL_NVLS_ENABLE", "0", MEANS, f"{_NEMO}, with {_CHECKS}", "nvd", _CHECKS),
    Effect("NCCL_NVLS_ENABLE", "0", MEANS, f"{_NEMO}, with {_SEGMENTS}", "nvd", _SEGMENTS),
    Effect("TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_HIGH_PRIORITY", "1", MEANS, _NEMO, "nvd"),
    Effect("NCCL_GRAPH_REGISTER", "0", MEANS, _BRIDGE, "nvd"),
    Effect("CUDA_DEVICE_MAX_CONNECTIONS", "1 8 32", MEANS, _BRIDGE, "nvd"),
    Effect("NVTE_FWD_LAYERNORM_SM_MARGIN NVTE_BWD_LAYERNORM_SM_MARGIN", "16 20", MEANS, _BRIDGE, "nvd"),
    Effect("NVTE_NORM_FWD_USE_CUDNN NVTE_NORM_BWD_USE_CUDNN NCCL_CTA_POLICY", "1", MEANS, _BRIDGE, "nvd"),
    Effect("NCCL_IGNORE_CPU_AFFINITY", "1", MEANS, _BRIDGE, "nvd"),
    Effect("NCCL_P2P_NET_CHUNKSIZE", "2097152", MEANS, _BRIDGE, "nvd"),
    Effect(
        "PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF",
        "expandable_segments:true",
        MEANS,
        f"segments that grow do not fragment (PyTorch documentation); {_BRIDGE}",
    ),
    # means of everybody
    Effect(
        "PYTORCH_TUNABLEOP_ENABLED PYTORCH_TUNABLEOP_TUNING",
        "1",
        MEANS,
        "the fastest kernel is looked for, by shape (PyTorch documentation, TunableOp)",
    ),
    Effect(
        "PYTORCH_TUNABLEOP_FILENAME PYTORCH_TUNABLEOP_VERBOSE PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS "
        "PYTORCH_TUNABLEOP_MAX_TUNING_ITERATIONS PYTORCH_TUNABLEOP_RECORD_UNTUNED",
        "*",
        MEANS,
        "settings of TunableOp (PyTorch documentation)",
    ),
    Effect(
        "TORCH_BLAS_PREFER_HIPBLASLT",
        "1",
        MEANS,
        "hipBLASLt is taken where there is a choice (PyTorch documentation)",
        "amd",
    ),
    Effect("TORCH_BLAS_PREFER_HIPBLASLT", "*", NO_EFFECT, "a choice of PyTorch for ROCm", "nvd"),
    Effect(
        "NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_OOB_NET_IFNAME UCX_NET_DEVICES",
        "*",
        MEANS,
        "names of this machine's network devices (NCCL documentation)",
    ),
    Effect("OMP_NUM_THREADS MKL_NUM_THREADS", "*", MEANS, "the cores of this machine, divided by its ranks"),
    # handicaps
    Effect("CUDA_LAUNCH_BLOCKING", "1", HANDICAP, "every kernel is waited for (CUDA C++ Programming Guide)"),
    Effect("HIP_LAUNCH_BLOCKING", "1", HANDICAP, "every kernel is waited for (HIP documentation)"),
    Effect("AMD_SERIALIZE_KERNEL", "1", HANDICAP, "each kernel waits for the one before (HIP documentation)"),
    Effect("AMD_SERIALIZE_KERNEL", "2 3", HANDICAP, "every kernel is waited for (HIP documentation)"),
    Effect("AMD_SERIALIZE_COPY", "1 2 3", HANDICAP, "every copy is waited for (HIP documentation)"),
    Effect("AMD_DIRECT_DISPATCH", "0", HANDICAP, "each launch passes through a thread of its own (HIP documentation)"),
    Effect("AMD_LOG_LEVEL", "1 2 3 4 5 6 7", HANDICAP, "the runtime writes a log as it works (HIP documentation)"),
    Effect("HSA_ENABLE_SDMA", "0", HANDICAP, "copies take compute units, not the copy engines (ROCm documentation)"),
    Effect(
        "HSA_NO_SCRATCH_RECLAIM", "0", HANDICAP, "scratch memory is given back after each kernel; AMD's image sets 1"
    ),
    Effect("HSA_XNACK", "1", HANDICAP, "kernels are built to repeat page faults (ROCm documentation)"),
    Effect("HSA_CU_MASK ROC_GLOBAL_CU_MASK", "*", HANDICAP, f"{_MASKED} (ROCm documentation, setting CUs)"),
    Effect("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "*", HANDICAP, f"{_MASKED} (CUDA documentation, MPS)"),
    Effect("NCCL_P2P_DISABLE", "1", HANDICAP, "GPUs exchange through the host (NCCL documentation)"),
    Effect("NCCL_P2P_LEVEL", "0 loc", HANDICAP, "GPUs exchange through the host (NCCL documentation)"),
    Effect("NCCL_P2P_DIRECT_DISABLE", "1", HANDICAP, "GPUs do not write to each other's memory (NCCL documentation)"),
    Effect("NCCL_NVB_DISABLE", "1", HANDICAP, "GPUs do not relay over a third one (NCCL documentation)"),
    Effect("NCCL_SHM_DISABLE", "1", HANDICAP, "GPUs of a machine exchange through the network (NCCL documentation)"),
    Effect("NCCL_IB_DISABLE", "1", HANDICAP, "machines exchange over sockets, not InfiniBand (NCCL documentation)"),
    Effect("NCCL_NET", "socket", HANDICAP, "the network is used over sockets (NCCL documentation)"),
    Effect("NCCL_NET_GDR_LEVEL", "0 loc", HANDICAP, "the network does not read GPU memory itself (NCCL documentation)"),
    Effect("NCCL_COLLNET_ENABLE", "0", HANDICAP, "reductions in the network are off (NCCL documentation)"),
    Effect("NCCL_NVLS_ENABLE", "0", HANDICAP, "reductions in the switch are off (NCCL documentation)"),
    Effect(
        "NCCL_MAX_NCHANNELS NCCL_MAX_CTAS NCCL_MAX_NRINGS NCCL_MAX_P2P_NCHANNELS",
        "*",
        HANDICAP,
        "the number of channels is limited (NCCL documentation)",
    ),
    Effect("NCCL_DEBUG", "trace", HANDICAP, "every call is written to a log (NCCL documentation)"),
    Effect(
        "RCCL_MSCCL_ENABLE RCCL_MSCCLPP_ENABLE", "0", HANDICAP, "RCCL's tuned collectives are off (RCCL documentation)"
    ),
    Effect("NVTE_FLASH_ATTN", "0", HANDICAP, "TransformerEngine may not take FlashAttention"),
    Effect("NVTE_FUSED_ATTN", "0", HANDICAP, "TransformerEngine may not take fused attention"),
    Effect(
        "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
        "0",
        HANDICAP,
        "only deterministic attention may run (TransformerEngine documentation)",
    ),
    Effect("FLASH_ATTENTION_DETERMINISTIC", "1", HANDICAP, "only deterministic attention may run (transformers)"),
    Effect("PRIMUS_DETERMINISTIC", "1", HANDICAP, "deterministic attention, collectives in a ring (Primus)"),
    Effect("TORCHINDUCTOR_DETERMINISTIC", "1", HANDICAP, "kernels are not tuned (torch/_inductor/config.py)"),
    Effect(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", "1", HANDICAP, "every allocation goes to the driver (PyTorch documentation)"
    ),
    Effect("PYTORCH_JIT", "0", HANDICAP, "nothing is compiled (PyTorch documentation)"),
    Effect(
        "TORCH_COMPILE_DISABLE TORCHDYNAMO_DISABLE PRIMUS_DISABLE_TORCH_COMPILE",
        "1",
        HANDICAP,
        "torch.compile is off (torch/_dynamo/config.py)",
    ),
    Effect(
        "TORCH_DISTRIBUTED_DEBUG", "detail", HANDICAP, "collectives are checked as they run (PyTorch documentation)"
    ),
    Effect("TORCH_NCCL_BLOCKING_WAIT", "1", HANDICAP, "every collective is waited for (PyTorch documentation)"),
    Effect("TORCH_BLAS_PREFER_HIPBLASLT", "0", HANDICAP, "hipBLASLt is not taken (PyTorch documentation)"),
    Effect("TRITON_INTERPRET", "1", HANDICAP, "kernels are interpreted (Triton README)"),
)
"""The first row that fits decides. 0 and 1 of a switch that is a handicap in its other position are the default."""
_WORDS = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


def canonical(value: object) -> str:
    """Return a value as it is compared: 01, true and 1 are one value, and so are INFO and info."""
    text = str(value).strip().lower()
    return str(int(text)) if text.isascii() and text.isdigit() else _WORDS.get(text, text)


def effect_of(name: str, environment: Mapping[str, object], platform: str, precision: str) -> tuple[str, str]:
    """Return the kind and the note of the effect that a variable of an environment has on a platform.

    NOT_JUDGED where no row fits. The note of a handicap of several values names the value: two of them differ.
    """
    value = canonical(environment[name])
    rows = [row for row in EFFECTS if name in row.names.split()]
    for row in rows:
        if row.holds(value, platform, precision) and _has_recipe(environment, row.beside):
            is_of_degree = row.kind == HANDICAP and row.values not in ("0", "1", value)
            return row.kind, f"{row.note}: {value}" if is_of_degree else row.note
    # a switch that hurts in one position does nothing in the other
    other = {"0": "1", "1": "0"}.get(value)
    if any(row.kind == HANDICAP and row.values == other for row in rows):
        return NO_EFFECT, "the default"
    return NOT_JUDGED, ""


def _has_recipe(environment: Mapping[str, object], beside: str) -> bool:
    """Return whether an environment has the other variable of a recipe, such as `NAME=1`; always without one."""
    name, _, value = beside.partition("=")
    if not name:
        return True
    return name in environment and value in ("*", canonical(environment[name]))


# The effect of what a certificate compares on the speed of a step.

BY_EFFECT = (
    # the work: more parameters, tokens or bits are more arithmetic
    "proof of model and data",
    "model",
    "model_size",
    "parameter_count",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_experts",
    "experts_per_token",
    "shared_expert_size",
    "routing",
    "token_dropping",
    "num_attention_heads",
    "num_query_groups",
    "vocab_size",
    "tie_word_embeddings",
    "sliding_window",
    "query_key_norm",
    "precision",
    "fp8_recipe",
    "float32_matmul_precision",
    "sequence_length",
    # the layout: exchange between GPUs, and the sizes of the products
    "num_gpus",
    "nodes",
    "micro_batch_size",
    "global_batch_size",
    "gradient_accumulation",
    "tp",
    "pp",
    "cp",
    "ep",
    "dp",
    "recompute",
    "profile",
    # what slows a whole machine or a whole run
    "setting",
    "time outside the steps",
    "waiting for data",
    "power cap",
    "clocks",
    "partition",
    "slowing down",
    "other work",
    "NUMA balancing",
    "environment",
    # the kernels and what they overlap
    "attention_backend",
    "attention_library",
    "hf_kernels",
    "fused_ops",
    "sum of weight gradients",
    "layer_implementation",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "distributed_optimizer",
    "gradient_reduce_dtype",
    "gradient_dtype",
    "parameter_dtype",
    "optimizer states",
    "optimizer",
    "optimizer_state",
    "dataloader_workers",
    "ecc",
    "cpu_governor",
    "persistence",
    "compute_mode",
    "framework versions",
    "image digest",
    "code sha256",
    # little or nothing of a step: details of the model, hyperparameters, data, losses
    "method",
    "qkv_bias",
    "router_dtype",
    "router_auxiliary_loss",
    "norm_eps",
    "rope_base",
    "rope_scaling",
    "init_std",
    "max_steps",
    "lr",
    "min_lr",
    "warmup_iters",
    "weight_decay",
    "parameters_without_weight_decay",
    "beta1",
    "beta2",
    "adam_eps",
    "clip_grad",
    "seed",
    "init",
    "dataset_bin_sha256",
    "dataset_idx_sha256",
    "epochs",
    "token_stream_sha256",
    "tokenizer_sha256",
    "model_config_sha256",
    "initial_weights_sha256",
    "loss curves",
    "losses",
    "initial loss",
    "early losses",
    "early gradient norms",
    "unseen data",
    "losses on the way",
    "stability of the training",
    "final loss",
    "hosts",
    "number of runs",
)
"""Keys of all items of a certificate, largest effect on the step time first. `environment` stands for every variable,
`setting` for every setting beyond the schema."""
