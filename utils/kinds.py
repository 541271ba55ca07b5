"""The kinds of time of a training step, and the kind of each operator and each kernel, by its name.

One list for everything that divides the time of a step. The kinds in KINDS add up to the step; OVERLAPPED stands beside
them. Names are those of torch 1.8 to 2.13 (ATen, autograd, c10d, inductor), of NVIDIA's cuBLAS, cuDNN, CUTLASS, NCCL,
TransformerEngine and Apex, and of AMD's rocBLAS, hipBLASLt, Composable Kernel, AITER, AOTriton, MIOpen and RCCL.
Standard library only.
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

RANGE = "tprimat:"
"""A profiler range `tprimat:optimizer` or `tprimat:attention` gives its kind to all computation launched inside it."""
_OPTIMIZER_RANGE = re.compile(r"Optimizer\.(step|zero_grad)#")
"""Ranges that torch.optim.Optimizer opens by itself (torch/optim/optimizer.py, profile_hook_step)."""

_WRAPPER = "autograd::engine::evaluate_function: "
_COLLECTIVES = r"(?<![a-z])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
_ATTENTION = r"attention|attn|fmha|sdpa|(?<![a-z])_?mha_|_fused_sdp_choice"

_OPERATORS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        MEMORY_BOUND,
        re.compile(
            r"fsdp::|aten::_foreach_copy|torch::autograd::|aten::_?(embedding|cat|stack)|reducer::copy_bucket|cross_?entropy|^detach",
            re.I,
        ),
    ),
    (
        COMMUNICATION,
        re.compile(
            rf"_?c10d|c10d_functional|(nccl|gloo|mpi|ucc|symm_mem|deep_ep)(:|$)|record_param_comms|{_COLLECTIVES}", re.I
        ),
    ),
    (
        OPTIMIZER,
        re.compile(r"aten::_(foreach|fused_(adam|sgd|adagrad)|amp_(foreach|update))|multi_tensor_|Optimizer\.", re.I),
    ),
    (ATTENTION, re.compile(_ATTENTION, re.I)),
    (
        MATMUL,
        re.compile(
            r"aten::_?((b|add|addb|badd?b|int_|scaled_|grouped_|scaled_grouped_|sparse_)?mm(_|$)|addmm_activation|matmul"
            r"|linear(_|$)|einsum|(add)?mv$|dot$|vdot$|inner$|ger$|tensordot|chain_matmul"
            r"|(mkldnn|mkl|cudnn|miopen|slow|thnn)_(linear|conv)|conv(olution|[123]d))"
            r"|(^|:|\.|_|[a-z])(Mm|Bmm|Addmm|Baddbmm|Matmul|Linear|Convolution|Mv|Dot)\w*Backward"
            r"|(?<!fb)gemm|(?i:_mm_|_matmul|mkldnn::_|mkl::_|_linear_pointwise|^Linear)",
        ),
    ),
    (MEMORY_BOUND, re.compile(r"aten::|prims::|\w+Backward\d+$|cpp_fused|triton_(poi|red|per)_")),
)
"""Kinds by the name of an operator; the first pattern that is found decides."""

_KERNELS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (MATMUL, re.compile(r"^(custom_)?cijk_|^nvjet")),
    (
        COMMUNICATION,
        re.compile(
            r"nccl|rccl|msccl|nvshmem|rocshmem|userbuffers|deep_?ep::|cross_device_reduce|(one|two)_shot_all|multimem_"
            rf"|{_COLLECTIVES}"
        ),
    ),
    (MEMORY_BOUND, re.compile(r"^triton_(poi|red|per|for|unk|split_scan|mix)_|^triton__\d|multi_tensor_apply.*copy")),
    (
        ATTENTION,
        re.compile(
            rf"{_ATTENTION}|flash|bwd_(kernel_)?(dk_?dv|dq|fuse)|bwd_preprocess"
            r"|scaled_?(upper_?triang_?|aligned_?causal_?)?masked_?softmax"
        ),
    ),
    (
        OPTIMIZER,
        re.compile(
            r"multi_?tensor|adam|(?<![a-z])(lamb(?!da)|sgd|lion|muon)|adagrad|kpreconditionoptimizer|koptimizer"
        ),
    ),
    (
        MATMUL,
        re.compile(
            r"(?<!fb)gemm|gemv|cutlass(?!::(bfloat16|half|float|tfloat|array|numeric))|cublas|rocblas|hipblas|xmma|(?<![a-z])splitk|wvsplitk|matmul|(?<![a-z])(bad|ad)?db?mm(?![a-z])"
            r"|(?<![a-z])b?mm(?![a-z])|implicit_convolve|winograd|convolve|conv[123]d|[fdw]grad|fprop|(?<![a-z])conv(?![a-z])"
            r"|miopensp3.*conv|convolution|im2col|col2im|scudnn|dot_kernel|reduce_1block_kernel"
        ),
    ),
    (
        MEMORY_BOUND,
        re.compile(
            r"at::native|at_cuda_detail|at::cuda|c10::|element_?wise|norm|softmax|soft_max|rope|rotary|swi_?glu|silu|gelu|relu"
            r"|geglu|cast|transpose|permute|copy|memcpy|memset|fill|reduce|embedding|cross_?entropy|dropout|gather|scatter"
            r"|index|sort|scan|topk|cat_?array|quant|amax|triu|tril|mask|cumsum|rms|cub::|rocprim|thrust|nchw|nhwc|pool|bias"
            r"|pointwise|vectorized|subtensorop|distribution|random|loss|token|pack|pad_|add_kernel|mul_kernel|cudnn::(ops|bn)"
        ),
    ),
)
"""Kinds by the name of a kernel, in lower case; the first pattern that is found decides."""


@lru_cache(maxsize=1 << 16)
def kind_of_operator(name: str) -> str | None:
    """Return the kind of an operator of torch.profiler; None if its name does not tell.

    IDLE is the kind of an operator that only runs other operators: its own time is the host's.
    """
    inner = name.removeprefix(_WRAPPER)
    for kind, pattern in _OPERATORS:
        if pattern.search(inner):
            return kind
    return IDLE if inner != name else None


@lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str) -> str | None:
    """Return the kind of a kernel of a GPU, CUDA or ROCm; None if its name does not tell."""
    lower = name.lower()
    return next((kind for kind, pattern in _KERNELS if pattern.search(lower)), None)


def kind_of_copy(name: str) -> str:
    """Return the kind of a copy or a fill, which the profiler lists apart from the kernels (`Memcpy HtoD ...`)."""
    lower = name.lower()
    if "dtoh" in lower or "htod" in lower or "hosttodevice" in lower or "devicetohost" in lower:
        return HOST_COPY
    if "ptop" in lower or "peer" in lower:
        return COMMUNICATION
    return HOST_COPY if "host" in lower or "htoh" in lower else MEMORY_BOUND


@lru_cache(maxsize=1 << 12)
def kind_of_range(name: str) -> str | None:
    """Return the kind that an annotated range gives to the work inside it; None for a range that gives none."""
    if _OPTIMIZER_RANGE.match(name):
        return OPTIMIZER
    kind = name.removeprefix(RANGE) if name.startswith(RANGE) else ""
    return kind if kind in (OPTIMIZER, ATTENTION) else None


def kind_within(outer: str | None, name: str, *, is_range: bool = False) -> str | None:
    """Return the kind of an operator or a range inside work of the kind `outer`; None if neither tells.

    Everything inside a range, an optimizer, an attention or a collective belongs to it.
    """
    if outer in (OPTIMIZER, ATTENTION, COMMUNICATION):
        return outer
    own = kind_of_range(name) if is_range else kind_of_operator(name)
    return own or outer


def kind_of_launch(kernel: str, launched_in: str | None) -> str:
    """Return the kind of a kernel that was launched inside work of the kind `launched_in` (None: unknown)."""
    own = kind_of_kernel(kernel)
    if own == COMMUNICATION:
        return COMMUNICATION
    if launched_in in (OPTIMIZER, ATTENTION):
        return launched_in
    if own is None and launched_in not in (None, IDLE):
        return launched_in or UNATTRIBUTED
    return own or UNATTRIBUTED
