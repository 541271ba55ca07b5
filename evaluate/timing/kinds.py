"""The kinds of time of a training step, and the kind of each operator and each kernel, by its name.

One list for everything that divides the time of a step. The kinds in KINDS add up to the step; OVERLAPPED stands beside
them. Names are those of torch 1.8 to 2.13 (ATen, autograd, c10d, inductor), of NVIDIA's cuBLAS, cuDNN, CUTLASS, NCCL,
TransformerEngine and Apex, and of AMD's rocBLAS, hipBLASLt, Composable Kernel, AITER, AOTriton, MIOpen and RCCL.
A mixture of experts has no kinds of its own: its grouped products are matrix products, router and permutation of tokens
are memory-bound, and dispatch and combine (all-to-all, DeepEP, HybridEP, MORI) are communication. Standard library
only.
"""

from __future__ import annotations

import re
from functools import lru_cache

MATMUL, ATTENTION, MEMORY_BOUND, OPTIMIZER = "matmul", "attention", "memory_bound", "optimizer"
COMMUNICATION, HOST_COPY, IDLE, UNATTRIBUTED = "communication_exposed", "host_copy", "idle", "unattributed"
OVERLAPPED = "communication_overlapped"
"""Communication during which the device also computes. It is not added to the kinds."""

KINDS = (MATMUL, ATTENTION, MEMORY_BOUND, OPTIMIZER, COMMUNICATION, HOST_COPY, IDLE, UNATTRIBUTED)
COMPUTE = (MATMUL, ATTENTION, OPTIMIZER, MEMORY_BOUND, UNATTRIBUTED)
"""Kinds of computation. Where several run at once, the time counts for the first of them."""
PRIORITY = (*COMPUTE, COMMUNICATION, HOST_COPY)
"""All kinds of work of a device: communication is exposed where nothing computes, a copy where nothing else runs."""
WORDS = {
    MATMUL: "matrix products",
    ATTENTION: "attention",
    MEMORY_BOUND: "memory-bound operators",
    OPTIMIZER: "optimizer",
    COMMUNICATION: "exposed communication",
    HOST_COPY: "copies between host and device",
    IDLE: "idle (the device waits for the host)",
    UNATTRIBUTED: "unattributed",
}
"""Name of each kind for readers."""

PHASES = ("forward", "backward", "optimizer")
"""Parts of a step in which work is launched."""

RANGE = "tprimat:"
"""A profiler range `tprimat:optimizer` or `tprimat:attention` gives its kind to what is launched inside it."""
_RANGE = re.compile(rf"Optimizer\.(?:step|zero_grad)#|{RANGE}(?P<kind>{OPTIMIZER}|{ATTENTION})\Z")
"""These, and those that torch.optim.Optimizer opens by itself (torch/optim/optimizer.py, profile_hook_step)."""

LINEAR_LAYERS = ("_Linear", "_LayerNormLinear")
"""Operators of TransformerEngine that launch the products of a layer themselves (pytorch/module, 1.0 to 2.20)."""
BACKWARD = "Backward"
"""End of the name that autograd gives to the backward pass of such a function."""

_WRAPPER = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"Backward\d*$")
_COLLECTIVES = r"(?<![a-z])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
_ATTENTION = r"attention|attn|fmha|sdpa|(?<![a-z])_?mha_|_fused_sdp_choice"

_OPERATORS: tuple[tuple[str, str, str], ...] = (
    (
        MEMORY_BOUND,
        "torch: FSDP2, DDP's buckets, foreach copies, AccumulateGrad",
        r"(?i:fsdp::|aten::_foreach_copy|torch::autograd::|aten::_?(embedding|cat|stack)|reducer::copy_bucket"
        r"|cross_?entropy|^detach)",
    ),
    (
        COMMUNICATION,
        "torch: c10d and its functional collectives; DeepEP's Python interface",
        rf"(?i:_?c10d|c10d_functional|(nccl|gloo|mpi|ucc|symm_mem|deep_ep)(:|$)|record_param_comms|{_COLLECTIVES})",
    ),
    (
        COMMUNICATION,
        "dispatch and combine: Megatron-LM core 0.19 moe/fused_a2a.py, TransformerEngine 2.20 pytorch/ep.py",
        r"(Fused|HybridEP|_Ep)(Dispatch|Combine)",
    ),
    (
        MEMORY_BOUND,
        "router and permutation: TransformerEngine 2.20 pytorch/{router,permutation}.py, Megatron-LM core 0.19 "
        "transformer/moe/moe_utils.py, fusions/fused_indices_converter.py",
        r"(?i:moe_?(un)?permute|moe_chunk_sort|FusedTopk|FusedComputeScores|(Fused|MoE)AuxLoss|ToMultihot|RandomSTE)",
    ),
    (
        OPTIMIZER,
        "torch/optim and NVIDIA Apex amp_C",
        r"(?i:aten::_(foreach|fused_(adam|sgd|adagrad)|amp_(foreach|update))|multi_tensor_|Optimizer\.)",
    ),
    (ATTENTION, "torch SDPA, flash-attention, TransformerEngine, AITER", rf"(?i:{_ATTENTION})"),
    (
        MATMUL,
        "torch: native_functions.yaml, derivatives.yaml, oneDNN; Megatron-LM's and TransformerEngine's linear layers",
        r"aten::_?((b|add|addb|badd?b|int_|scaled_|grouped_|scaled_grouped_|sparse_)?mm(_|$)|addmm_activation|matmul"
        r"|linear(_|$)|einsum|(add)?mv$|dot$|vdot$|inner$|ger$|tensordot|chain_matmul"
        r"|(mkldnn|mkl|cudnn|miopen|slow|thnn)_(linear|conv)|conv(olution|[123]d))"
        r"|(^|:|\.|_|[a-z])(Mm|Bmm|Addmm|Baddbmm|Matmul|Linear|Convolution|Mv|Dot)\w*Backward"
        r"|(?<!fb)gemm|(?i:_mm_|_matmul|mkldnn::_|mkl::_|_linear_pointwise|^(RouterGating|_Grouped)?Linear)",
    ),
    (
        IDLE,
        "Megatron-LM tensor_parallel/mappings.py: pass a tensor on, or run a collective",
        r"^_\w+(To|From)\w*Region",
    ),
    (
        MEMORY_BOUND,
        "torch: all other operators; inductor",
        r"aten::|prims::|\w+Backward\d+$|cpp_fused|triton_(poi|red|per)_",
    ),
)
"""Kind, source of the names, and pattern of the name of an operator; the first pattern that is found decides."""

_PROJECTION = re.compile(r"aten::_?(addmm|mm|linear|scaled_mm|grouped_mm|scaled_grouped_mm)|Linear|gemm")
"""Products with a weight, by the name of an operator. Inside an attention function they are products; the batched
products of the scores (aten::bmm) are attention. DeepSeek's profile-data has fp8 products in its attention function."""
_SCORES = re.compile(r"aten::|^$")
"""Operators inside attention whose products are of the scores; another function of attention launches its own."""

_KERNELS: tuple[tuple[str, str, str], ...] = (
    (MATMUL, "hipBLASLt and Tensile (Cijk), cuBLAS 12.6 and later (nvjet)", r"^(custom_)?cijk_|^nvjet"),
    (MEMORY_BOUND, "DeepEP csrc/kernels/layout.cu: counts tokens, sends nothing", r"get_dispatch_layout"),
    (
        COMMUNICATION,
        "DeepEP csrc/kernels/{intranode,internode,internode_ll}.cu, also in Primus-Turbo and DeepSeek's profile-data; "
        "from 2.0 on deep_ep/include/deep_ep/impls; branch hybrid-ep csrc/hybrid_ep/{backend,extension/allgather.cu}",
        r"(?<![a-z])((deep|hybrid)_?)?ep::.*(dispatch|combine|notify|barrier|clean|sync|pp_|update_expected)"
        r"|(?<![a-z])ag_nvl_kernel",
    ),
    (
        MEMORY_BOUND,
        "MORI src/ops/dispatch_combine/convert.hpp: sorts by expert, sends nothing",
        r"convert(dispatch|combine)",
    ),
    (COMMUNICATION, "AMD's MORI src/ops/kernels/ep_*.hip at 624002c8", r"(?<![a-z])ep(dispatch|combine)[a-z]"),
    (
        COMMUNICATION,
        "NCCL, RCCL, MSCCL, NVSHMEM, rocSHMEM; torch's symmetric memory; vLLM's, AITER's and MORI's collectives",
        r"nccl|rccl|msccl|nvshmem|rocshmem|cross_device_reduce|(one|two)_?shot_?all|multimem_",
    ),
    (
        COMMUNICATION,
        "TransformerEngine common/comm_gemm_overlap/userbuffers/userbuffers.cu",
        r"userbuffers|(?<![a-z_])(producer|consumer)(_batch)?_kernel",
    ),
    (
        COMMUNICATION,
        "Primus-Turbo csrc/kernels/odc_rocshmem/odc_rocshmem_gda.cu: reduce-scatter",
        r"(?<![a-z])rs_acc_kernel",
    ),
    (COMMUNICATION, "names of collectives in any library", _COLLECTIVES),
    (
        MEMORY_BOUND,
        "torch inductor codegen/triton.py; copies of foreach",
        r"^triton_(poi|red|per|for|unk|split_scan|mix)_|^triton__\d|multi_tensor_apply.*copy",
    ),
    (
        MEMORY_BOUND,
        "TransformerEngine common/swizzle/swizzle.cu, common/util/padding.cu, common/hadamard_transform",
        r"multi_tensor_(un)?(swizzle|pad)|hadamard",
    ),
    (
        ATTENTION,
        "flash-attention, xFormers, AOTriton, Composable Kernel and AITER (fmha), Megatron-LM's fused softmax",
        rf"{_ATTENTION}|flash|bwd_(kernel_)?(dk_?dv|dq|fuse)|bwd_preprocess|gemm_.*softmax_gemm"
        r"|scaled_?(upper_?triang_?|aligned_?causal_?)?masked_?softmax",
    ),
    (
        ATTENTION,
        "cuDNN fusion kernels of the backward pass; flash-attention flash_bwd_kernel.h",
        r"dot_do_o|convert_?dq",
    ),
    (
        ATTENTION,
        "TransformerEngine common/fused_attn/context_parallel.cu and flash_attn.cu",
        r"thd_(out_correction|grad_correction|lse|read_half|partition_indices)|convert_(thd_to_bshd|bshd_to_thd)",
    ),
    (
        OPTIMIZER,
        "NVIDIA Apex csrc/multi_tensor_*.cu, torch ATen/native/cuda/fused_*.cu, DeepSpeed, Muon",
        r"multi_?tensor|adam|(?<![a-z])(lamb(?!da)|sgd|lion|muon)|adagrad|kpreconditionoptimizer|koptimizer",
    ),
    (MATMUL, "Primus-Turbo primus_turbo/triton/gemm/gemm_fp8_kernel.py", r"blockwise_fp8_unified_kernel"),
    (
        MATMUL,
        "cuBLAS, CUTLASS, rocBLAS, hipBLAS, Composable Kernel, Triton, vLLM; not CuTe DSL (kernel_cutlass_...), whose "
        "names have the operation behind this prefix",
        r"(?<!fb)gemm|gemv|(?<!kernel_)cutlass(?!::(bfloat16|half|float|tfloat|array|numeric))|cublas|rocblas|hipblas|xmma"
        r"|(?<![a-z])splitk|wvsplitk|matmul|dot_kernel|reduce_1block_kernel",
    ),
    (
        MATMUL,
        "products named mm; not mangled names, whose parameters may end with mm (two of unsigned long)",
        r"^(?!_z).*(?<![a-z])((bad|ad)?db?mm|b?mm)(?![a-z])",
    ),
    (
        MATMUL,
        "convolutions of cuDNN and MIOpen",
        r"implicit_convolve|winograd|convolve|conv[123]d|[fdw]grad|fprop|(?<![a-z])conv(?![a-z])|miopensp3.*conv"
        r"|convolution|im2col|col2im|scudnn|cask_cudnn|^(void )?fft[123]d_|flip_filter",
    ),
    (
        MEMORY_BOUND,
        "torch ATen/native/cuda, cub, rocPRIM, Thrust; norms, rope, activations, casts, losses of any library",
        r"at::native|at_cuda_detail|at::cuda|c10::|element_?wise|norm|softmax|soft_max|rope|rotary|swi_?glu|silu|gelu|relu"
        r"|geglu|cast|transpose|permute|copy|memcpy|memset|fill|reduce|embedding|cross_?entropy|dropout|gather|scatter"
        r"|index|sort|scan|topk|cat_?array|quant|amax|triu|tril|mask|cumsum|rms|cub::|rocprim|thrust|nchw|nhwc|pool|bias"
        r"|pointwise|vectorized|subtensorop|distribution|random|loss|token|pack|pad_|add_kernel|mul_kernel|cudnn::(ops|bn)",
    ),
    (MEMORY_BOUND, "NVIDIA Apex csrc/layer_norm_cuda_kernel.cu", r"cucompute|cuapply"),
    (
        MEMORY_BOUND,
        "TransformerEngine common/util/vectorized_pointwise.h, common/activation, common/recipe, common/swizzle",
        r"unary_(grad_)?kernel|(?<![a-z])d?gated_act|scaled_(gated|unary)|compute_\w*scale|scale_inv|block_scaled"
        r"|(?<![a-z])(un)?swizzle_|grouped_(un)?swizzle|multi_(un)?padding|swap_first_dims",
    ),
    (
        MEMORY_BOUND,
        "router and permutation of tokens: TransformerEngine 2.20 common/{permutation,fused_router,gemm,util} and "
        "common/triton/permutation.py, Megatron-LM, Primus-Turbo a6a16cdc csrc/kernels/{moe_permute,grouped_gemm} and "
        "primus_turbo/triton/moe, DeepSeek's profile-data, MORI",
        r"row_id_map|row_map|multihot|expand_to_fused|fused_mapping|count_expert|expert_?count|group_indices|aux_fi"
        r"|histogram|accum_to_output|tensor_offsets|splits_to_offsets|group_offs|routing_(backward_)?kernel"
        r"|convert_int32",
    ),
)
"""Kind, source of the names, and pattern of the name of a kernel in lower case; the first pattern found decides."""


_SECOND_PASS = re.compile("splitKreduce|PostGSU")
"""Sums of the parts of one product, in cuBLAS and hipBLASLt."""

_COPIES = (
    (HOST_COPY, "between host and device", "dtoh|htod|hosttodevice|devicetohost"),
    (COMMUNICATION, "between devices", "ptop|peer"),
    (HOST_COPY, "within the host", "host|htoh"),
)


def _first(rows: tuple[tuple[str, str, str], ...], name: str) -> str | None:
    for kind, _, pattern in rows:
        if re.search(pattern, name):
            return kind
    return None


@lru_cache(maxsize=1 << 16)
def kind_of_operator(name: str) -> str | None:
    """Return the kind of an operator of torch.profiler; None if its name does not tell.

    IDLE is the kind of an operator that only runs other operators: its own time is the host's.
    """
    kind = _first(_OPERATORS, name.removeprefix(_WRAPPER))
    if kind is None and name.startswith(_WRAPPER):
        return IDLE
    return kind


@lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str) -> str | None:
    """Return the kind of a kernel of a GPU, CUDA or ROCm; None if its name does not tell."""
    return _first(_KERNELS, name.lower())


def is_product(kernel: str) -> bool:
    """Return True for a kernel that computes a matrix product, not for one that adds up the parts of one."""
    return kind_of_kernel(kernel) == MATMUL and not _SECOND_PASS.search(kernel)


def is_backward(name: str) -> bool:
    """Return True for an operator that autograd runs in the backward pass; what it runs and launches is of it too."""
    return name.startswith(_WRAPPER) or _BACKWARD.search(name) is not None


def kind_of_copy(name: str) -> str:
    """Return the kind of a copy or a fill, which the profiler lists apart from the kernels (`Memcpy HtoD ...`)."""
    return _first(_COPIES, name.lower()) or MEMORY_BOUND


@lru_cache(maxsize=1 << 12)
def kind_of_range(name: str) -> str | None:
    """Return the kind that an annotated range gives to the work inside it; None for a range that gives none."""
    found = _RANGE.match(name)
    if found is None:
        return None
    return found["kind"] or OPTIMIZER


def kind_within(outer: str | None, name: str, *, is_range: bool = False) -> str | None:
    """Return the kind of an operator or a range inside work of the kind `outer`; None if neither tells.

    Everything inside an optimizer or a collective belongs to it; so it is inside attention, except products with a
    weight.
    """
    if outer in (OPTIMIZER, COMMUNICATION):
        return outer
    if outer == ATTENTION:
        return MATMUL if _PROJECTION.search(name) else ATTENTION
    own = kind_of_range(name) if is_range else kind_of_operator(name)
    return own or outer


def kind_of_launch(kernel: str, launched_in: str | None, operator: str = "") -> str:
    """Return the kind of a kernel that was launched inside work of the kind `launched_in` (None: unknown).

    `operator` is the name of the innermost operator around the launch.
    """
    own = kind_of_kernel(kernel)
    if own == COMMUNICATION or (own == MATMUL and launched_in == ATTENTION and not _SCORES.match(operator)):
        return own
    if launched_in in (OPTIMIZER, ATTENTION):
        return launched_in
    if own is None and launched_in != IDLE:
        own = launched_in
    return own or UNATTRIBUTED
