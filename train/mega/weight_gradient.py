"""Weight gradients accumulated inside the matrix product, by torch alone.

Otherwise the product is written to memory, read again and added to the sum of the gradients in a pass of its own.
megatron-core's linear layers call two functions of an extension of Apex for it (`fused_weight_gradient_mlp_cuda`,
imported by megatron/core/tensor_parallel/layers.py); this module has the same two functions.

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


def wgrad_gemm_accum_fp32(total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor) -> None:
    """Add `grad_output`.T @ `total_input` to `main_grad`, float32 or of the operands' dtype.

    Shapes: [tokens, in], [tokens, out] and [out, in]; both operands have one dtype, float32 or half precision.
    """
    transposed = grad_output.t()
    if total_input.dtype is main_grad.dtype:
        main_grad.addmm_(transposed, total_input)
    elif main_grad.device.type == "cpu":
        main_grad.addmm_(transposed.float(), total_input.float())
    else:
        torch.addmm(main_grad, transposed, total_input, out_dtype=main_grad.dtype, out=main_grad)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32
"""Apex's name for a buffer of the operands' own half precision; the product itself adds up in float32."""


def is_exact(device: torch.device | str) -> bool:
    """Return whether bf16 operands can be added to a float32 buffer on a device; tried once with small numbers.

    The functions are those that megatron-core's own linear layers call: Apex's where it is installed.
    """
    ones = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    buffer = torch.full((16, 16), 1 / 3, dtype=torch.float32, device=device)
    wanted = buffer + 16
    try:
        importlib.import_module(APEX_NAME).wgrad_gemm_accum_fp32(ones, ones, buffer)
    except (ImportError, RuntimeError, TypeError):  # NotImplementedError, of a device without it, is a RuntimeError
        return False
    return torch.equal(buffer, wanted)
