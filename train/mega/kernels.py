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
import torch.nn.functional as F

APEX_NAME = "fused_weight_gradient_mlp_cuda"


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function, for fixed shapes. Nothing of the compiler is imported before the first call."""
    return torch.compile(function, dynamic=False)


def turn(
    first: torch.Tensor,
    second: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    turned_first: torch.Tensor,
    turned_second: torch.Tensor,
) -> None:
    """Turn pairs of numbers, the halves of each head, by an angle, and write them where they are wanted.

    Shapes: halves [sequence, batch, heads, head_dim / 2], in any layout; tables [sequence, 1, 1, head_dim / 2].
    """
    a, b = first.float(), second.float()
    turned_first.copy_(a * cosine - b * sine)
    turned_second.copy_(b * cosine + a * sine)


@functools.lru_cache(maxsize=2)
def cosine_and_sine(angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tables of one half of a head; the other half has the same angles.

    All layers get the same tensor of angles, so the tables are computed once and not for each number again.
    """
    half = angles[..., : angles.shape[-1] // 2].float()
    return half.cos(), half.sin()


def _turned(values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    result = torch.empty(values.shape, dtype=values.dtype, device=values.device)
    compiled(turn)(*values.chunk(2, dim=-1), cosine, sine, *result.chunk(2, dim=-1))
    return result


class _Rotary(torch.autograd.Function):
    """Keeps only the tables, which all layers share."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(values, cosine, sine)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(gradients[0], cosine, -sine), None, None  # the inverse turns back


def fused_rotary(t: torch.Tensor, freqs: torch.Tensor, *, interleaved: bool = False, **_: Any) -> torch.Tensor:
    """Return `t` [sequence, batch, heads, head_dim], turned by the angles `freqs` [sequence, 1, 1, head_dim].

    The arguments are those of megatron-core's `fused_apply_rotary_pos_emb`. Raises NotImplementedError for interleaved
    pairs and for a part of a head, which no model here has.
    """
    if interleaved or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("rotary embedding: only whole heads in the order of GPT-NeoX are fused here")
    return _Rotary.apply(t, *cosine_and_sine(freqs))


def install_rotary() -> None:
    """Make megatron-core use `fused_rotary` in local layers, with or without TransformerEngine: `apply_rope_fusion`."""
    from megatron.core.models.common.embeddings import rope_utils

    rope_utils.fused_apply_rotary_pos_emb = fused_rotary


def write_swiglu_gradient(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, to_gate: torch.Tensor, to_up: torch.Tensor
) -> None:
    """Write the gradients of `silu(gate) * up` (Shazeer, arXiv 2002.05202, equation 6) from that of the result."""
    exact, a, b = gradient.float(), gate.float(), up.float()
    share = torch.sigmoid(a)
    to_gate.copy_(exact * b * share * (1 + a * (1 - share)))
    to_up.copy_(exact * a * share)


def swiglu_gradient(gradient: torch.Tensor, halves: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the joined gate and up projection, with the arguments of megatron-core's `swiglu_back`.

    Shapes: gradient [tokens, ffn], halves and result [tokens, 2 ffn]. megatron-core joins two parts; the compiled join
    computes both parts for every number behind a mask, which took twice as long as the bytes need (on an H200).
    """
    result = torch.empty_like(halves)
    compiled(write_swiglu_gradient)(gradient, *halves.chunk(2, dim=-1), *result.chunk(2, dim=-1))
    return result


def install_swiglu() -> None:
    """Make the backward pass of megatron-core's fused SwiGLU use `swiglu_gradient`."""
    from megatron.core.fusions import fused_bias_swiglu

    fused_bias_swiglu.swiglu_back = swiglu_gradient


class _Rows(torch.autograd.Function):
    """Rows of a table, whose gradient is added to the rows of the buffer `main_grad`.

    The gradient of torch's embedding is a whole table for each micro batch, filled and then added: 3.8 ms of an H200
    each time for 128,256 rows of 4,096 numbers, of which 2,048 are not 0.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight = weight  # not saved: the buffer belongs to this very object
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (tokens,) = ctx.saved_tensors
        buffer = ctx.weight.main_grad
        rows = gradients[0].reshape(-1, buffer.shape[-1]).to(buffer.dtype)
        # on a GPU accumulation by index sorts the rows first, so that equal tokens are added in a fixed order
        buffer.index_put_((tokens.reshape(-1),), rows, accumulate=True)
        ctx.weight.grad_added_to_main_grad = True
        # DDP asks that there is a gradient and does not read it, as after megatron-core's fused products
        return torch.empty_like(ctx.weight), None


def rows(weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the rows [..., hidden] of a table [vocabulary, hidden] by number.

    The weight is a parameter of megatron-core's DDP, whose gradient goes to its buffer `main_grad`.
    """
    return _Rows.apply(weight, tokens)


def statistics(logits: torch.Tensor, labels: torch.Tensor, first: int) -> tuple[torch.Tensor, ...]:
    """Return, for each token, maximum and sum of exp(logit - maximum) over this rank's part of the vocabulary, which
    begins at `first`, and the label's logit (0 where the label belongs to another rank); all float32.

    Shapes: logits [sequence, batch, part of the vocabulary], labels and results [sequence, batch].
    """
    exact = logits.float()
    # with kept axes inductor recognises a softmax and reads the logits once for both numbers
    maximum = exact.amax(dim=-1, keepdim=True)
    total = (exact - maximum).exp().sum(dim=-1, keepdim=True)
    place = labels - first
    is_here = (place >= 0) & (place < logits.shape[-1])
    chosen = exact.gather(-1, place.where(is_here, 0).unsqueeze(-1)).squeeze(-1)
    return maximum.squeeze(-1), total.squeeze(-1), chosen.where(is_here, 0.0)


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
