"""Rotary embedding as one kernel in each direction, compiled for either vendor's GPU.

megatron-core takes a fused rotary embedding from TransformerEngine only (`fused_apply_rotary_pos_emb` of
megatron/core/models/common/embeddings/rope_utils.py); its own is composed of nine operations for query and key each,
and rounds after every one in bf16. The functions here compute in float32 and round once.
"""

from __future__ import annotations

from typing import Any

import torch

from train.common.compiled import compiled
from train.common.rotary import turned, turned_gradient

LLAMA3_ROPE = (1.0, 4.0, 8192)
"""Constants of megatron-core's `rope_scaling`: frequency factors, original length. Only the factor is an argument."""


def rotated(values: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return `values` [sequence, batch, heads, head_dim] rotated by `angles` [sequence, 1, 1, head_dim]."""
    return turned(values, angles.cos(), angles.sin())


def rotated_gradient(gradient: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return the gradient of `values` from that of the result of `rotated`."""
    return turned_gradient(gradient, angles.cos(), angles.sin())


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
