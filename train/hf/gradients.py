"""Gradients of the Trainer's parameters: their sums over a step, and their norm without a read by the host.

On one GPU the linear layers add the gradients of their weights up inside the matrix product. Autograd would write the
gradient of a weight to memory, and a pass of its own would read it and add it to the sum of the step: 10 bytes a weight
and micro batch with bf16 weights and float32 sums. Several ranks shard by FSDP2, which needs autograd's gradient for
its reduction.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from train.common.weight_gradient import add_product

NORM_EPSILON = 1e-6
"""Added to the norm before the limit is divided by it, as in torch.nn.utils.clip_grad_norm_ and in megatron-core."""


class GradientSums:
    """The sum of a step's gradients in `dtype`, in `main_gradient` of each parameter, as megatron-core keeps it.

    Autograd makes the gradient of a micro batch in the dtype of the weight. It is added and freed as soon as it is
    complete. A linear layer of train/hf/gradients.py adds inside its product instead, so that autograd makes none.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._begun: set[int] = set()
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._add)

    def begin_step(self) -> None:
        """Let the next part of each sum replace that of the last step."""
        self._begun.clear()

    def add_product(self, parameter: torch.Tensor, values: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add `gradient`.T @ `values`; shapes [tokens, out] and [tokens, in] for a weight of [out, in]."""
        total, is_first = self._sum_of(parameter)
        add_product(values, gradient, total, is_first=is_first)

    def _add(self, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:  # torch calls the hook of a weight that was added in its product too
            return
        total, is_first = self._sum_of(parameter)
        if is_first:
            total.copy_(gradient)
        else:
            total.add_(gradient)

    def _sum_of(self, parameter: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Return the sum and whether the next part is the first one; a tied weight gets two parts a micro batch."""
        total: torch.Tensor | None = getattr(parameter, "main_gradient", None)
        if total is None:
            total = torch.empty_like(parameter, dtype=self.dtype, requires_grad=False)
            parameter.main_gradient = total  # type: ignore[attr-defined]
        is_first = id(parameter) not in self._begun
        self._begun.add(id(parameter))
        return total, is_first


def total_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the L2 norm of all gradients, in float32 on their device; of sharded ones over all ranks."""
    gradients = [gradient for parameter in parameters if (gradient := _gradient_of(parameter)) is not None]
    norms = torch._foreach_norm([_local(gradient) for gradient in gradients], 2, dtype=torch.float32)
    norm = torch.linalg.vector_norm(torch.stack(norms))
    if not any(isinstance(gradient, DTensor) for gradient in gradients):
        return norm
    square = norm.square()
    torch.distributed.all_reduce(square)
    return square.sqrt()


def clip_coefficient(norm: torch.Tensor, largest: float) -> torch.Tensor:
    """Return the factor that brings gradients of this norm to `largest`, at most 1, as a tensor on its device."""
    return (largest / (norm + NORM_EPSILON)).clamp(max=1.0)


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    total: torch.Tensor | None = getattr(parameter, "main_gradient", None)
    return parameter.grad if total is None else total


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
