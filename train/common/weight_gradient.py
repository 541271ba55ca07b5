"""Weight gradients accumulated inside the matrix product, by torch alone.

Otherwise the product is written to memory, read again and added to the sum of the gradients in a pass of its own.
`add_product` is for any framework (train/hf/gradients.py). megatron-core's linear layers call two functions of an
extension of Apex for it (`fused_weight_gradient_mlp_cuda`, imported by megatron/core/tensor_parallel/layers.py); this
module has the same two functions.

- CUDA: one product of cuBLAS reads bf16, adds to the float32 buffer and writes it (`torch.addmm` with `out_dtype`).
- ROCm: the same call with rocBLAS or hipBLASLt. Builds of torch before 2.10 wrote a wrong type; `is_exact` finds them.
- CPU: torch has no such product; the operands become float32 first. megatron-core uses it there in tests only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

APEX_NAME = "fused_weight_gradient_mlp_cuda"


def install() -> None:
    """Offer this module under Apex's name where Apex's own is missing; call it before megatron-core is imported."""
    if importlib.util.find_spec(APEX_NAME) is None:
        sys.modules[APEX_NAME] = sys.modules[__name__]


def add_product(values: torch.Tensor, gradient: torch.Tensor, total: torch.Tensor, *, is_first: bool = False) -> None:
    """Add `gradient`.T @ `values` to `total`, float32 or of the operands' dtype; the first product replaces it.

    Shapes: [tokens, in], [tokens, out] and [out, in]; both operands have one dtype, float32 or half precision. With
    beta 0 a product does not read `total`, which may be uninitialised.
    """
    transposed, beta = gradient.t(), 0 if is_first else 1
    if values.dtype is total.dtype:
        total.addmm_(transposed, values, beta=beta)
    elif total.device.type == "cpu":
        total.addmm_(transposed.float(), values.float(), beta=beta)
    else:
        torch.addmm(total, transposed, values, out_dtype=total.dtype, beta=beta, out=total)


def wgrad_gemm_accum_fp32(total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add `grad_output`.T @ `total_input` to a float32 buffer, for megatron-core."""
    add_product(total_input, grad_output, main_grad)


def wgrad_gemm_accum_fp16(total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add the same to a buffer of the operands' own half precision; the product itself adds up in float32."""
    add_product(total_input, grad_output, main_grad)


def is_exact(device: torch.device | str, name: str = __name__) -> bool:
    """Return whether bf16 operands can be added to a float32 buffer on a device; tried once with small numbers.

    `name` is the module whose functions are used: this one, or `APEX_NAME` for what megatron-core's own linear layers
    call, which is Apex's where it is installed.
    """
    ones = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    buffer = torch.full((16, 16), 1 / 3, dtype=torch.float32, device=device)
    wanted, replaced = buffer + 16, torch.full_like(buffer, 16)
    try:
        functions = importlib.import_module(name)
        functions.wgrad_gemm_accum_fp32(ones, ones, buffer)
        if functions is sys.modules[__name__]:
            replaced = torch.full_like(buffer, torch.nan)
            add_product(ones, ones, replaced, is_first=True)
    except (ImportError, RuntimeError, TypeError):  # NotImplementedError, of a device without it, is a RuntimeError
        return False
    return torch.equal(buffer, wanted) and torch.equal(replaced, torch.full_like(replaced, 16))
