"""Norms, rotary embedding, activation and loss of transformers' models as one kernel in each direction, on a GPU.

transformers composes them of PyTorch's operations, each a pass over memory that rounds to bf16. Here the same functions
compute in float32 and round once; `mega` has the same kernels. Each takes the place of transformers' own function in
one model: the method of a norm or MLP, the loss function of the model, and the rotary embedding of the module that
defines the model. No result is written in place over another one, except for the gradient of the logits, so that
RECOMPUTE may keep what it wants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from train.common.compiled import compiled, turned, turned_gradient
from train.common.cross_entropy import in_place_cross_entropy

ROTARY = "apply_rotary_pos_emb"
"""The function that every attention of transformers calls, by its name in the module that defines the model."""
IGNORED = -100
"""Label without a loss, of transformers and torch."""


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) x up (Shazeer, arXiv 2002.05202, equation 6)."""
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def swiglu_gradients(gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of gate and up; the derivative of silu is s + silu (1 - s), with s the sigmoid."""
    exact, of_result = gate.float(), gradient.float()
    sigmoid = exact.sigmoid()
    silu = exact * sigmoid
    of_gate = of_result * up.float() * (sigmoid + silu * (1 - sigmoid))
    return of_gate.to(gate.dtype), (of_result * silu).to(up.dtype)


class _SwiGLU(torch.autograd.Function):
    """Keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return compiled(swiglu)(gate, up)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return compiled(swiglu_gradients)(gradients[0], *ctx.saved_tensors)


class _Rotary(torch.autograd.Function):
    """Keeps only cosine and sine, which all layers share."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        return compiled(turned)(values, cosine, sine)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return compiled(turned_gradient)(gradients[0], *ctx.saved_tensors), None, None


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rotated query and key, with the arguments of transformers' `apply_rotary_pos_emb`."""
    cosine, sine = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return _Rotary.apply(q, cosine, sine), _Rotary.apply(k, cosine, sine)


def loss(
    logits: torch.Tensor, labels: torch.Tensor, shift_labels: torch.Tensor, num_items_in_batch: Any, **_: Any
) -> torch.Tensor:
    """Return the share of these tokens in the mean loss of `num_items_in_batch` tokens, float32.

    Shapes: logits [batch, sequence, vocabulary], `shift_labels` [batch, sequence]. The backward pass overwrites the
    logits. `labels` are there because transformers passes them.
    """
    losses = in_place_cross_entropy(logits, shift_labels)
    return losses.where(shift_labels != IGNORED, 0.0).sum() / num_items_in_batch


def fuse(model: PreTrainedModel, *, with_loss: bool) -> None:
    """Put the functions above into a model. The rotary embedding changes for every model of its class."""
    for norm in _norms(model):
        norm.forward = MethodType(_norm_forward, norm)
    for layer in model.model.layers:
        layer.mlp.forward = MethodType(_mlp_forward, layer.mlp)
    setattr(_module(model), ROTARY, rotary)
    if with_loss:
        model.loss_function = loss


def read(model: PreTrainedModel) -> dict[str, bool]:
    """Return what is fused in a model, by the names that megatron-core has for it."""
    mlps = [layer.mlp for layer in model.model.layers]
    return {
        "rms_norm_fusion": all(_has(norm, _norm_forward) for norm in _norms(model)),
        "bias_activation_fusion": all(_has(mlp, _mlp_forward) for mlp in mlps),
        "apply_rope_fusion": getattr(_module(model), ROTARY) is rotary,
        "cross_entropy_loss_fusion": model.loss_function is loss,
    }


def _norm_forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


def _mlp_forward(self: Any, x: torch.Tensor) -> Any:
    return self.down_proj(_SwiGLU.apply(self.gate_proj(x), self.up_proj(x)))


def _has(module: torch.nn.Module, forward: Any) -> bool:
    return getattr(module.forward, "__func__", None) is forward


def _norms(model: PreTrainedModel) -> Iterator[Any]:
    for layer in model.model.layers:
        yield layer.input_layernorm
        yield layer.post_attention_layernorm
        if hasattr(layer.self_attn, "q_norm"):
            yield layer.self_attn.q_norm
            yield layer.self_attn.k_norm
    yield model.model.norm


def _module(model: PreTrainedModel) -> Any:
    return sys.modules[type(model.model.layers[0].self_attn).__module__]
