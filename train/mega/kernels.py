"""Kernels of torch for either vendor's GPU, where megatron-core wants TransformerEngine, Apex or more memory.

**Rotary embedding.** megatron-core takes a fused one from TransformerEngine only (`fused_apply_rotary_pos_emb` of
megatron/core/models/common/embeddings/rope_utils.py); its own is composed of nine operations for query and key each,
and rounds after every one in bf16. The functions here compute in float32 and round once, compiled to one kernel in each
direction. Pairs of numbers half a head apart turn by the angle at their position (Su et al., arXiv 2104.09864, equation
34, in the order of GPT-NeoX).

**Cross entropy** turns the logits into their own gradient, so that they exist once. megatron-core's fused cross entropy
(megatron/core/fusions/fused_cross_entropy.py) keeps a float32 softmax beside the bf16 logits: 6 bytes a logit, 6.3 GB
for 8,192 tokens of Llama 3.1. Here the logits stay as they are and only one number a token is kept beside them; the
backward pass writes the gradient over them. Two compiled kernels.

**Weight gradients** are accumulated inside the matrix product. Otherwise the product is written to memory, read again
and added to the sum of the gradients in a pass of its own. megatron-core's linear layers call two functions of an
extension of Apex for it (`fused_weight_gradient_mlp_cuda`, imported by megatron/core/tensor_parallel/layers.py); this
module has the same two functions.

- CUDA: one product of cuBLAS reads bf16, adds to the float32 buffer and writes it (`torch.addmm` with `out_dtype`).
- ROCm: the same call with rocBLAS or hipBLASLt. Builds of torch before 2.10 wrote a wrong type; `is_exact` finds them.
- CPU: torch has no such product; the operands become float32 first. megatron-core uses it there in tests only.

Imports torch only: `install` has to run before megatron-core is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

APEX_NAME = "fused_weight_gradient_mlp_cuda"


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function, for fixed shapes. Nothing of the compiler is imported before the first call."""
    return torch.compile(function, dynamic=False)


def rotated(values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return `values` [sequence, batch, heads, head_dim] rotated by `angles` [sequence, 1, 1, head_dim]."""
    exact = values.float()
    first, second = exact.chunk(2, dim=-1)
    return (exact * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()).to(values.dtype)


def rotated_gradient(gradient: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return the gradient of `values` from that of the result of `rotated`."""
    exact = gradient.float()
    first, second = (exact * angles.sin()).chunk(2, dim=-1)
    return (exact * angles.cos() + torch.cat((second, -first), dim=-1)).to(gradient.dtype)


class _Rotary(torch.autograd.Function):
    """Keeps only the angles, which all layers share."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(angles)
        return compiled(rotated)(values, angles)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (angles,) = ctx.saved_tensors
        return compiled(rotated_gradient)(gradients[0], angles), None


def fused_rotary(t: torch.Tensor, freqs: torch.Tensor, *, interleaved: bool = False, **_: Any) -> torch.Tensor:
    """Return the rotated `t`, with the arguments of megatron-core's `fused_apply_rotary_pos_emb`.

    Raises NotImplementedError for interleaved pairs and for a part of a head, which no model here has.
    """
    if interleaved or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("rotary embedding: only whole heads in the order of GPT-NeoX are fused here")
    return _Rotary.apply(t, freqs)


def install_rotary() -> None:
    """Make megatron-core use `fused_rotary` in local layers, with or without TransformerEngine: `apply_rope_fusion`."""
    from megatron.core.models.common.embeddings import rope_utils

    rope_utils.fused_apply_rotary_pos_emb = fused_rotary


def statistics(logits: torch.Tensor, labels: torch.Tensor, first: int) -> tuple[torch.Tensor, ...]:
    """Return, for each token, maximum and sum of exp(logit - maximum) over this rank's part of the vocabulary, which
    begins at `first`, and the label's logit (0 where the label belongs to another rank); all float32.

    Shapes: logits [sequence, batch, part of the vocabulary], labels and results [sequence, batch].
    """
    exact = logits.float()
    maximum = exact.amax(dim=-1)
    total = (exact - maximum.unsqueeze(-1)).exp().sum(dim=-1)
    place = labels - first
    is_here = (place >= 0) & (place < logits.shape[-1])
    chosen = exact.gather(-1, place.where(is_here, 0).unsqueeze(-1)).squeeze(-1)
    return maximum, total, chosen.where(is_here, 0.0)


def write_gradient(
    logits: torch.Tensor, labels: torch.Tensor, log_sum: torch.Tensor, gradient: torch.Tensor, first: int
) -> None:
    """Write over the logits their gradient, softmax minus one at the label, times the gradient of each token's loss."""
    softmax = (logits.float() - log_sum.unsqueeze(-1)).exp()
    column = torch.arange(logits.shape[-1], device=logits.device)
    is_label = (column == (labels - first).unsqueeze(-1)).float()
    logits.copy_((softmax - is_label) * gradient.unsqueeze(-1))


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: Any) -> torch.Tensor:
        first = group.rank() * logits.shape[-1]
        maximum, total, chosen = compiled(statistics)(logits, labels, first)
        if group.size() > 1:
            maximum, total, chosen = _over_ranks(maximum, total, chosen, group)
        log_sum = total.log() + maximum
        ctx.save_for_backward(logits, labels, log_sum)
        ctx.first = first
        return log_sum - chosen

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, labels, log_sum = ctx.saved_tensors
        compiled(write_gradient)(logits, labels, log_sum, gradients[0], ctx.first)
        return logits, None, None


def _over_ranks(
    maximum: torch.Tensor, total: torch.Tensor, chosen: torch.Tensor, group: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Combine the parts of the vocabulary that tensor-parallel ranks hold: two all-reduces of numbers per token."""
    whole = maximum.clone()
    torch.distributed.all_reduce(whole, op=torch.distributed.ReduceOp.MAX, group=group)
    sums = torch.stack((total * (maximum - whole).exp(), chosen))
    torch.distributed.all_reduce(sums, group=group)
    return whole, sums[0], sums[1]


def in_place_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the loss of each token [sequence, batch], float32 nats; the backward pass overwrites the logits.

    `group` are the tensor-parallel ranks, each with its part of the vocabulary; None is one rank with all of it. The
    loss of a label outside the vocabulary has no meaning; its gradient must be 0. Nothing else may need the logits.
    """
    return _InPlace.apply(logits, labels, group)


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
