"""RECOMPUTE: what a decoder layer keeps of its forward pass, by the activation checkpointing of transformers.

`none` keeps everything that autograd asks for. `full` keeps the input of a layer and computes the layer again.
`selective` keeps the results of matrix products and of attention, and computes again what is cheap: norms, rotary
embedding, the MLP's activation, residual sums.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import PreTrainedModel

_ATEN = torch.ops.aten
KEPT = [
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Operators whose results `selective` keeps: products of matrices, and attention in each of torch's kernels."""


def set_recompute(model: PreTrainedModel, recompute: str) -> None:
    """Turn on what RECOMPUTE asks for. A pass has no random numbers, so their state is not kept."""
    if recompute == "none":
        return
    keywords: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if recompute == "selective":
        keywords["context_fn"] = functools.partial(create_selective_checkpoint_contexts, KEPT)
    # transformers has renamed it
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(keywords)


def read_recompute(model: PreTrainedModel) -> str:
    """Return `none`, `selective` or `full`, from the layers; raise ValueError where they differ."""
    kinds = {_of_layer(layer) for layer in model.model.layers}
    if len(kinds) != 1:
        raise ValueError(f"layers differ in what they compute again: {sorted(kinds)}")
    return kinds.pop()


def _of_layer(layer: Any) -> str:
    if not layer.gradient_checkpointing:
        return "none"
    return "selective" if "context_fn" in layer._gradient_checkpointing_func.keywords else "full"
