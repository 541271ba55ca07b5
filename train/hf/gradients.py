"""Gradients of the Trainer's parameters: their float32 sums, and their norm without a read by the host."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

NORM_EPSILON = 1e-6
"""Added to the norm before the limit is divided by it, as in torch.nn.utils.clip_grad_norm_ and in megatron-core."""


class Float32Sums:
    """The sum of a step's bf16 gradients in float32, in `main_gradient` of each parameter, as megatron-core keeps it.

    Autograd makes the gradient of a micro batch in bf16. It is added and freed as soon as it is complete.
    """

    is_first = True
    """Whether the next gradients are those of the first micro batch of a step, which replace the sums of the last."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._add)

    def _add(self, parameter: torch.Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        total = getattr(parameter, "main_gradient", None)
        if total is None:
            parameter.main_gradient = gradient.float()  # type: ignore[attr-defined, union-attr]
        elif self.is_first:
            total.copy_(gradient)
        else:
            total.add_(gradient)


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
