"""Rotary embedding as one kernel in each direction, compiled for either vendor's GPU.

megatron-core takes a fused rotary embedding from TransformerEngine only (`fused_apply_rotary_pos_emb` of
megatron/core/models/common/embeddings/rope_utils.py); its own is composed of nine operations for query and key each,
and rounds after every one in bf16. The functions here compute in float32 and round once.
"""

from __future__ import annotations

from typing import Any

import torch

LLAMA3_ROPE = (1.0, 4.0, 8192)
"""Constants of megatron-core's `rope_scaling`: frequency factors, original length. Only the factor is an argument."""


def rotated(values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return `values` [sequence, batch, heads, head_dim] rotated by `angles` [sequence, 1, 1, head_dim]: each pair of
    numbers that are half a head apart by the angle at their place (Su et al., arXiv 2104.09864, equation 34, in the
    order of GPT-NeoX).
    """
    exact = values.float()
    first, second = exact.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (exact * angles.cos() + turned * angles.sin()).to(values.dtype)


def rotated_gradient(gradient: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return the gradient of `values` from that of the result of `rotated`."""
    exact = gradient.float()
    first, second = (exact * angles.sin()).chunk(2, dim=-1)
    return (exact * angles.cos() + torch.cat((second, -first), dim=-1)).to(gradient.dtype)


_compiled = torch.compile(rotated, dynamic=False)
_compiled_gradient = torch.compile(rotated_gradient, dynamic=False)


class _Rotary(torch.autograd.Function):
    """Keeps only the angles, which all layers share."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(angles)
        return _compiled(values, angles)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (angles,) = ctx.saved_tensors
        return _compiled_gradient(gradients[0], angles), None


def fused(t: torch.Tensor, freqs: torch.Tensor, *, interleaved: bool = False, **_: Any) -> torch.Tensor:
    """Return the rotated `t`, with the arguments of megatron-core's `fused_apply_rotary_pos_emb`.

    Raises NotImplementedError for interleaved pairs and for a part of a head, which no model here has.
    """
    if interleaved or freqs.shape[-1] != t.shape[-1]:
        raise NotImplementedError("rotary embedding: only whole heads in the order of GPT-NeoX are fused here")
    return _Rotary.apply(t, freqs)


def install() -> None:
    """Make megatron-core use `fused` for `apply_rope_fusion`; for local layers, with or without TransformerEngine."""
    from megatron.core.models.common.embeddings import rope_utils

    rope_utils.fused_apply_rotary_pos_emb = fused
