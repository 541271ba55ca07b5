"""Stand-ins of kernels that C++ chooses by device: attention, RMSNorm, regions of torch.compile.

Each does what torch does on a GPU in memory and work; only a GPU shows whether it does. They change torch for good.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from train.rehearsal.device import StandInError
from train.rehearsal.ledger import Ledger, replace

aten = torch.ops.aten
_ATEN = torch.library.Library("aten", "IMPL")
COMPOSED = ("silu_backward", "mish_backward")
"""Operators with a kernel on every device, for which a build without it would take one composed of others. These are
all operators of torch 2.13 that are registered so."""
HALF = (torch.bfloat16, torch.float16)


def lend_regions(ledger: Ledger) -> None:
    """Replace torch.compile: the ledger counts a compiled function as one operator."""

    def compiled(function: Callable[..., Any], **_: Any) -> Any:
        @functools.wraps(function)
        def region(*args: Any, **keywords: Any) -> Any:
            name = getattr(function, "__name__", type(function).__name__)
            return ledger.as_one_operator(f"compiled::{name}", function, args, keywords)

        return region

    replace(torch, compile=compiled)


def lend_kernels(ledger: Ledger) -> None:
    """Replace the functions whose kernel on a GPU is not what C++ composes for another device."""
    for name in COMPOSED:
        _ATEN.impl(name, _without_data, "CUDA")
    rms_norm = _rms_norm(F.rms_norm, ledger)
    replace(F, scaled_dot_product_attention=_attention(F.scaled_dot_product_attention), rms_norm=rms_norm)
    replace(torch, rms_norm=rms_norm)


def _without_data(*_: Any, **__: Any) -> Any:
    raise StandInError("an operator ran on data, which a rehearsal does not have")


def _attention(composed: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention that takes the backend torch takes on a GPU, in torch's order of preference.

    The conditions are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp that depend on arguments. torch
    prefers cuDNN to flash on some GPUs, which reads and writes the same.
    """

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        is_half, is_grouped = query.dtype in HALF, query.shape[1] != key.shape[1]
        if not isinstance(query, FakeTensor) or query.fake_device.type != "cuda":
            return composed(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        allowed = torch.backends.cuda
        if allowed.flash_sdp_enabled() and is_half and attn_mask is None:
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if allowed.mem_efficient_sdp_enabled() and not is_grouped:
            mask = _as_numbers(attn_mask, query, key)
            efficient = aten._scaled_dot_product_efficient_attention
            return efficient(query, key, value, mask, True, dropout_p, is_causal, scale=scale)[0]
        return composed(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return attention


def _as_numbers(mask: Any, query: Any, key: Any) -> Any:
    if mask is None:
        return None
    numbers = torch.where(mask, 0.0, float("-inf")).to(query.dtype) if mask.dtype is torch.bool else mask
    return numbers.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _rms_norm(composed: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """Return an RMSNorm that is one kernel each way on the device and keeps its input and 1 / rms, as torch's is."""

    def forward(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(x), torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)

    def backward(gradient: torch.Tensor, x: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor) -> Any:
        return torch.empty_like(x), torch.empty_like(weight)

    class FusedRmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            normalised, inverse = ledger.as_one_operator("aten::_fused_rms_norm", forward, (x, weight), {})
            ctx.save_for_backward(x, inverse, weight)
            return normalised

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, inverse, weight = ctx.saved_tensors
            inputs, name = (gradient, x, inverse, weight), "aten::_fused_rms_norm_backward"
            return ledger.as_one_operator(name, backward, inputs, {})

    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> torch.Tensor:
        if weight is None or not isinstance(input, FakeTensor) or input.fake_device.type != "cuda":
            return composed(input, normalized_shape, weight, eps)
        return FusedRmsNorm.apply(input, weight)

    return rms_norm
