"""Names in results for dtypes, and for the kernels that a training has used: attention, and float32 products.

Kernels are read from the libraries when the steps have run.

TransformerEngine keeps its last choice in a mapping of its module for attention, under the same names in 2.4.0, 2.8.0,
2.12.0, 2.16.0 and 2.20.2 and in ROCm's fork; it sets one of the three `use_..._attention` and clears the others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""dtypes of torch by the values of PRECISION, OPTIMIZER_STATE and GRADIENT_DTYPE."""
PRECISIONS = {dtype: name for name, dtype in DTYPES.items()}
"""Names of the suite by dtype."""
ENGINE = "transformer_engine"
_CHOICE = (f"{ENGINE}.pytorch.attention.dot_product_attention", "_attention_backends")
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


def multiply_exactly() -> None:
    """Turn off TF32: NVIDIA's images turn it on by TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which sets torch's default."""
    torch.set_float32_matmul_precision("highest")


def read(built: Mapping[str, Any]) -> dict[str, str]:
    """Return `attention_backend`, `float32_matmul_precision` and, where it is known, `attention_library`.

    `built` is the `resolved_config` of the training, whose `attention_backend` is what was read before its first step.
    """
    layers, kernel = str(built["attention_backend"]).partition(":")[::2]
    library: str | None
    if layers == ENGINE:
        kernel, library = _of_engine(kernel)
    else:
        library = _of_torch(kernel)
    return {
        "attention_backend": f"{layers}:{kernel}" if kernel else layers,
        **({"attention_library": library} if library else {}),
        "float32_matmul_precision": _float32_products(built),
    }


def _of_engine(asked: str) -> tuple[str, str | None]:
    """Return kernel and library of TransformerEngine's attention; what was asked of it where it does not tell."""
    module, name = _CHOICE
    choice = getattr(sys.modules.get(module), name, {})
    if choice.get("use_flash_attention"):
        version = choice["flash_attention_backend"]
        return "flash", "flash_attn" if version is None else f"flash_attn {version}"
    if choice.get("use_fused_attention"):
        backend = choice["fused_attention_backend"].name.removeprefix("NVTE_")
        kernel, library = FUSED.get(backend, (f"fused_{backend.lower()}", None))
        return kernel, _with_version(library)
    return ("unfused", "torch") if choice.get("use_unfused_attention") else (asked, None)


def _of_torch(kernel: str) -> str | None:
    if kernel == "cudnn":
        return _with_version(kernel)
    if kernel in ("flash", "efficient") and torch.version.hip:
        preferred: Any = torch.backends.cuda.preferred_rocm_fa_library()
        return ROCM_LIBRARIES.get(preferred.name)
    return "torch" if kernel else None


def _with_version(library: str | None) -> str | None:
    """Return the library; cuDNN with the version that torch has loaded, 9.14.0 as 91400."""
    return f"{library} {torch.backends.cudnn.version()}" if library == "cudnn" else library


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
