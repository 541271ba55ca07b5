"""transformers' linear layers with weight gradients that are added up inside the matrix product, on one GPU.

Autograd would write the gradient of a weight to memory, and a pass of its own would read it and add it to the sum of
the step: 10 bytes a weight and micro batch with bf16 weights and float32 sums. Here the product itself adds to the sum
(train/common/weight_gradient.py). Several ranks shard by FSDP2, which needs autograd's gradient for its reduction.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from train.hf.gradients import GradientSums


class _Linear(torch.autograd.Function):
    """The function of a linear layer; its weight gets no gradient from autograd."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, sums: GradientSums
    ) -> torch.Tensor:
        ctx.save_for_backward(values)
        ctx.weight, ctx.has_bias, ctx.sums = weight, bias is not None, sums
        return F.linear(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        ctx.sums.add_product(ctx.weight, values.reshape(-1, values.shape[-1]), gradient)
        of_values = gradient.mm(ctx.weight).view(values.shape)
        return of_values, None, gradient.sum(0) if ctx.has_bias else None, None


def add_in_products(model: PreTrainedModel, sums: GradientSums) -> None:
    """Let every linear layer of the model add the gradient of its weight to `sums` inside the product."""

    for layer in _layers(model):
        layer.gradient_sums = sums
        layer.forward = MethodType(_forward, layer)


def adds_in_products(model: PreTrainedModel) -> bool:
    """Return whether every linear layer does so."""
    return all(getattr(layer.forward, "__func__", None) is _forward for layer in _layers(model))


def _forward(self: Any, values: torch.Tensor) -> Any:
    return _Linear.apply(values, self.weight, self.bias, self.gradient_sums)


def _layers(model: PreTrainedModel) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
