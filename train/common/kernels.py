"""Names in results for dtypes and kernels, and facts that are read back alike from the frameworks that run FSDP2.

The kernels that a training has used are read from the libraries when its steps have run.

TransformerEngine keeps its last choice in a mapping of its module for attention, under the same names in 2.4.0, 2.8.0,
2.12.0, 2.16.0 and 2.20.2 and in ROCm's fork; it sets one of the three `use_..._attention` and clears the others. Its
fused backend is an enumeration of its C++ up to 2.18, of Python in 2.19, and a plain number from 2.20.0 on.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.nn.attention import SDPBackend

from utils.readings import attempt

Facts = dict[str, Any]
"""A part of `resolved_config`, as it is read back from built objects."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""dtypes of torch by the values of PRECISION, OPTIMIZER_STATE and GRADIENT_DTYPE."""
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
"""Names of the suite by dtype."""
ENGINE = "transformer_engine"
KEYS = ("attention_backend", "attention_library", "float32_matmul_precision")
"""Keys of `resolved_config` that are read when the steps have run."""
_CHOICE = (f"{ENGINE}.pytorch.attention.dot_product_attention", "_attention_backends")
_FUSED_MODULE = f"{ENGINE}.pytorch.cpp_extensions.fused_attn"
MAPS = Path("/proc/self/maps")
_CUDNN = re.compile(r"/\S*/libcudnn\.so[.\d]*$", re.MULTILINE)
FUSED = {
    "F16_max512_seqlen": ("fused", "cudnn"),
    "F16_arbitrary_seqlen": ("fused", "cudnn"),
    "FP8": ("fused_fp8", "cudnn"),
    "CK": ("fused", "ck"),
    "AOTriton": ("fused", "aotriton"),
}
"""Kernel and library by the name of TransformerEngine's fused backend: NVTE_Fused_Attn_Backend of
transformer_engine/common/include/transformer_engine/fused_attn.h, of ROCm's fork the last two."""
ROCM_LIBRARIES = {"Default": "aotriton", "AOTriton": "aotriton", "Ck": "ck"}
"""Library of torch's flash and efficient kernels by the name of torch's preference on ROCm, whose default is AOTriton
(torch.backends.cuda.preferred_rocm_fa_library). torch does not tell when it falls back to another one."""
PRODUCTS = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
"""Names of torch.set_float32_matmul_precision by those of torch.backends.cuda.matmul.fp32_precision (torch 2.9)."""


def name_of(dtype: torch.dtype) -> str:
    """Return torch's own name of a dtype, `float32`."""
    return str(dtype).removeprefix("torch.")


def read(built: Mapping[str, Any]) -> Facts:
    """Return `attention_backend`, `float32_matmul_precision` and, where it is known, `attention_library`.

    `built` is the `resolved_config` of the training, whose `attention_backend` is what was read before its first step.
    What cannot be read is None, or has its known part alone, with the reason in `reasons`, which is absent without one.
    """
    reasons = {}
    facts = {"attention_backend": built["attention_backend"]}
    if facts["attention_backend"] is not None:
        layers, _, asked = facts["attention_backend"].partition(":")
        chosen = _of_engine(asked) if layers == ENGINE else Chosen(asked, _of_torch(asked))
        facts["attention_backend"] = f"{layers}:{chosen.kernel}" if chosen.kernel else layers
        if chosen.why:
            reasons["attention_backend"] = chosen.why
        if chosen.library:
            facts["attention_library"] = chosen.library
        if chosen.library == "cudnn":
            version, why = attempt(torch.backends.cudnn.version)
            if version:
                facts["attention_library"] = f"cudnn {version}"
            if why:
                reasons["attention_library"] = f"its version is unknown: {why}"
    facts["float32_matmul_precision"], why = attempt(lambda: _float32_products(built))
    if why:
        reasons["float32_matmul_precision"] = why
    return facts | {"reasons": reasons} if reasons else facts


class Chosen(NamedTuple):
    """A kernel and its library, None where that is unknown, with the reason where the name of the kernel is a guess."""

    kernel: str
    library: str | None
    why: str = ""


def _of_engine(asked: str) -> Chosen:
    """Return kernel and library of TransformerEngine's attention; what was asked of it where it does not tell."""
    module, name = _CHOICE
    choice = getattr(sys.modules.get(module), name, {})
    if choice.get("use_flash_attention"):
        version = choice["flash_attention_backend"]
        return Chosen("flash", "flash_attn" if version is None else f"flash_attn {version}")
    if choice.get("use_fused_attention"):
        backend, why = attempt(lambda: _fused_name(choice["fused_attention_backend"]))
        if backend is None:
            return Chosen("fused", None, f"TransformerEngine's name of its fused attention is unknown: {why}")
        kernel, library = FUSED.get(backend, (f"fused_{backend.lower()}", None))
        return Chosen(kernel, library)
    if choice.get("use_unfused_attention"):
        return Chosen("unfused", "torch")
    return Chosen(asked, None)


def _fused_name(backend: Any) -> str:
    """Return TransformerEngine's name of a fused backend, which is an enumeration or, from 2.20 on, its number."""
    if not hasattr(backend, "name"):
        backend = sys.modules[_FUSED_MODULE].FusedAttnBackend(backend)
    return str(backend.name).removeprefix("NVTE_")


def _of_torch(kernel: str) -> str | None:
    if kernel in ("flash", "efficient") and torch.version.hip:
        preferred, _ = attempt(torch.backends.cuda.preferred_rocm_fa_library)
        return ROCM_LIBRARIES.get(getattr(preferred, "name", ""))
    if kernel == "cudnn":
        return kernel
    return "torch" if kernel else None


def loaded_cudnn() -> dict[str, int]:
    """Return the version of each cuDNN library that this process has loaded, 9.14.0 as 91400, by its folder."""
    paths = set(_CUDNN.findall(MAPS.read_text(encoding="utf8", errors="replace")))
    return {str(Path(path).parent): ctypes.CDLL(path).cudnnGetVersion() for path in sorted(paths)}


def _float32_products(built: Mapping[str, Any]) -> str:
    """Return `highest` for IEEE float32, `high` for TF32, `medium` for bf16, as products of float32 matrices have run.

    TransformerEngine on CUDA multiplies them as TF32 whatever torch is set to (transformer_engine/common/gemm/
    cublaslt_gemm.cu, `CUBLAS_COMPUTE_32F_FAST_TF32`), unless NVIDIA_TF32_OVERRIDE=0 turns it off in cuBLAS.
    """
    is_engine = built["layer_implementation"] == ENGINE and built["precision"] == "fp32" and torch.version.cuda
    if is_engine and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0":
        return PRODUCTS["tf32"]
    # newer torch refuses to read the older name where another library has used the newer one
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() if newer is None else PRODUCTS[newer]


def sdpa_kernel(
    heads: int, groups: int, length: int, width: int, dtype: torch.dtype, device: Any, *, has_mask: bool = False
) -> str | None:
    """Return the name of torch's kernel (flash, cudnn, efficient or math) for the attention of one sequence.

    None where torch does not tell it: the function that tells is not public.

    `heads` are those of the queries, `groups` those of keys and values, `width` is that of a head. The attention is
    causal, by a mask or by torch's own argument.
    """

    def like(count: int) -> torch.Tensor:
        return torch.empty((1, count, length, width), dtype=dtype, device=device, requires_grad=True)

    key, mask = like(groups), None
    if has_mask:
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device)

    def choice() -> SDPBackend:
        query = like(heads)
        return SDPBackend(torch._fused_sdp_choice(query, key, key, mask, 0.0, not has_mask, enable_gqa=groups != heads))

    chosen, _ = attempt(choice)
    return None if chosen is None else chosen.name.lower().removesuffix("_attention")


def policy_of(layer: Any) -> MixedPrecisionPolicy | None:
    """Return the dtypes with which a layer was sharded, None where the model is not sharded."""
    return layer._get_fsdp_state()._mp_policy if isinstance(layer, FSDPModule) else None


def class_of(model: Any) -> type:
    """Return the library's class of a model; FSDP2 gives a sharded model a class of its own, derived from it."""
    return next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))


def optimizer_facts(optimizer: Any, state: torch.dtype, schedule: Any, clip: float) -> Facts:
    """Return the facts of an optimizer with decayed parameters in its first group, and of its LambdaLR."""
    decayed, *others = optimizer.param_groups
    undecayed = [parameter for group in others if group["weight_decay"] == 0 for parameter in group["params"]]
    (rule,) = {id(rule): rule for rule in schedule.lr_lambdas}.values()  # one for all groups
    peak = schedule.base_lrs[0]
    return {
        "optimizer": f"{type(optimizer).__module__}.{type(optimizer).__name__}",
        "optimizer_state": PRECISIONS[state],
        "lr": peak,
        "min_lr": peak * rule.floor,
        "warmup_iters": rule.warmup_iterations,
        "weight_decay": decayed["weight_decay"],
        "beta1": decayed["betas"][0],
        "beta2": decayed["betas"][1],
        "adam_eps": decayed["eps"],
        "clip_grad": clip,
        "parameters_without_weight_decay": sum(parameter.numel() for parameter in undecayed),
    }


def batch_facts(
    data: Any, *, steps: int, micro_batch: int, accumulation: int, ranks: int, replicas: int, workers: int, **sizes: int
) -> Facts:
    """Return the facts of batch, data and parallelism; `data` is GPTDataset's configuration, `sizes` those above 1."""
    parallel = {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | sizes
    return parallel | {
        "max_steps": steps,
        "micro_batch_size": micro_batch,
        "gradient_accumulation": accumulation,
        "global_batch_size": micro_batch * accumulation * replicas,
        "sequence_length": data.sequence_length,
        "num_gpus": ranks,
        "dp": replicas,
        "seed": data.random_seed,
        "dataloader_workers": workers,
    }


def tokens_of_experts(experts: int, place: int, output: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the tokens of each expert from the output of a router, which has at `place` the experts of each token."""
    chosen = output[place].flatten()
    return torch.zeros(experts, dtype=torch.long, device=chosen.device).scatter_add_(0, chosen, torch.ones_like(chosen))


def communication_facts(policy: MixedPrecisionPolicy | None, reduces_in: torch.dtype, device: Any) -> Facts:
    """Return the facts of FSDP2's communication; `device` is the one of this rank."""
    can_overlap = policy is not None and device.type == "cuda"  # gloo's collectives wait until they are done
    return {
        "distributed_optimizer": policy is not None,
        "gradient_dtype": PRECISIONS[reduces_in],
        "gradient_reduce_dtype": name_of(reduces_in),
        "overlap_grad_reduce": can_overlap,
        "overlap_param_gather": can_overlap,
    }
