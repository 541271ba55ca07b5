"""AdamW for every framework here and both vendors: bf16 weights with an exact float32 master, one pass over memory.

Bytes a parameter, without the gradient: 2 (weight) + 2 (remainder of the master) + 8 (moments in float32) = 12, or
+ 4 (moments in bf16) = 8. With a float32 gradient 16 or 12, with a bf16 gradient 14 or 10. A float32 weight has no
remainder.

Why our own: torch.optim.AdamW keeps moments in the dtype of the weights, so bf16 weights need a float32 copy (4 more
bytes) and float32 copies of the gradients. TransformerEngine's FusedAdam can do what is done here, but not every image
has a version that megatron-core accepts, and a pair whose sides use different optimizers does not compare hardware.
torch-optimi keeps a bf16 Kahan term, which is not a float32 master, and torchao rounds stochastically or quantizes the
moments to 8 or 4 bits; both want gradients in the dtype of the weights. torch.compile makes one kernel of `update` for
CUDA and for ROCm.

`WarmupCosine` is the learning-rate rule of every framework here, for those that take a function of the step.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

GRADIENT_NAMES = ("decoupled_grad", "grad")
"""Attributes of a parameter that may hold its gradient; the first that exists and is not None is used."""
CPU_CHUNK = 2**16
"""Elements that are updated at once on a CPU: the temporaries, at most ten float32 arrays, stay under 3 MB."""
COLUMNS = 128
"""A compiled kernel loads vectors only if it knows that the number of elements is a multiple of their length."""


class FusedAdamW(torch.optim.Optimizer):
    """AdamW with the update rule of torch.optim.AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).

    Weights are float32 or bf16, gradients too, in any combination. All arithmetic is float32. The update uses the new
    moments before they are rounded to `state_dtype`. A bf16 moment follows changes of more than 2**-9 of its value
    only: 1 - beta2 should not be below 0.01. A bf16 weight is always its master rounded to nearest, ties to even.

    Plain tensors and DTensors (of which the local part is updated) are taken; both must be contiguous. Nothing of a
    step is read by the host. States: `exp_avg`, `exp_avg_sq` and, of bf16 weights, `remainder` (int16), each of the
    shape of the local weight; they are made in the first step. `step` of a parameter group counts the calls of `step`.

    Gradients are read as `GRADIENT_NAMES` lists. The caller clears those that `zero_grad` does not know.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        """Take parameters or groups as torch.optim.AdamW does; `state_dtype` is float32 or bf16."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})
        self.state_dtype = state_dtype
        self.clip_coefficient: torch.Tensor | None = None
        """One number on the weights' device; every gradient is multiplied by it inside the step. None means 1."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; raise NotImplementedError for a closure, which no trainer has."""
        if closure is not None:
            raise NotImplementedError("FusedAdamW takes no closure: call backward before step")
        for group in self.param_groups:
            group["step"] += 1
            by_device: dict[torch.device, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                gradient = gradient_of(parameter)
                if gradient is None or gradient.numel() == 0:
                    continue
                if gradient.device not in by_device:
                    by_device[gradient.device] = scalars(group, self.clip_coefficient, gradient.device)
                self._update(parameter, gradient, by_device[gradient.device])

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, numbers: list[torch.Tensor]) -> None:
        weight = _local(parameter).detach()
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(weight, dtype=self.state_dtype)
            state["exp_avg_sq"] = torch.zeros_like(weight, dtype=self.state_dtype)
            if weight.dtype is torch.bfloat16:
                state["remainder"] = torch.zeros_like(weight, dtype=torch.int16)
        tensors = [weight, state.get("remainder"), state["exp_avg"], state["exp_avg_sq"]]
        flat = [None if tensor is None else tensor.view(-1) for tensor in tensors]
        flat.append(gradient.reshape(-1))
        if weight.device.type == "cuda":
            shaped = [rows(tensor) for tensor in flat]
            compiled_update()(*shaped, *numbers)
            return
        # a float32 weight has no remainder, which `update` takes as None with every chunk
        pieces = [itertools.repeat(None) if tensor is None else tensor.split(CPU_CHUNK) for tensor in flat]
        for chunk in zip(*pieces, strict=False):
            update(*chunk, *numbers)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return this rank's part of the gradient, or None if the parameter has none."""
    for name in GRADIENT_NAMES:
        gradient = getattr(parameter, name, None)
        if gradient is not None:
            return _local(gradient)
    return None


def scalars(group: dict[str, Any], clip: torch.Tensor | None, device: torch.device) -> list[torch.Tensor]:
    """Return the numbers of a step in the order of `update`, as tensors: a new number compiles nothing again.

    They are computed in float64 and filled in on the device, which needs no copy from the host.
    """
    (beta1, beta2), step, rate = group["betas"], group["step"], group["lr"]
    numbers = (
        1 - rate * group["weight_decay"],
        1 - beta1,
        beta2,
        1 - beta2,
        rate / (1 - beta1**step),
        math.sqrt(1 - beta2**step),
        group["eps"],
    )
    filled = [torch.full((), number, dtype=torch.float32, device=device) for number in numbers]
    one = torch.ones((), dtype=torch.float32, device=device)
    return [one if clip is None else clip.to(device, torch.float32).reshape(()), *filled]


def update(
    weight: torch.Tensor,
    remainder: torch.Tensor | None,
    moment1: torch.Tensor,
    moment2: torch.Tensor,
    gradient: torch.Tensor,
    clip: torch.Tensor,
    decay: torch.Tensor,
    one_minus_beta1: torch.Tensor,
    beta2: torch.Tensor,
    one_minus_beta2: torch.Tensor,
    step_size: torch.Tensor,
    root_correction2: torch.Tensor,
    epsilon: torch.Tensor,
) -> None:
    """Update tensors of one shape in place; the numbers are float32 tensors of no dimension.

    Each operation is one float32 operation on a CPU. A compiled kernel may contract a product and a sum into one
    rounding, and then differs in the last bits.
    """
    gradient = gradient.float() * clip
    # a float32 weight is its own master
    master = weight if remainder is None else join_master(weight, remainder)
    first, second = moment1.float(), moment2.float()
    first = first + one_minus_beta1 * (gradient - first)
    second = second * beta2 + one_minus_beta2 * gradient * gradient
    denominator = second.sqrt() / root_correction2 + epsilon
    master = master * decay - step_size * first / denominator
    moment1.copy_(first)
    moment2.copy_(second)
    if remainder is None:
        weight.copy_(master)
        return
    rounded, rest = split_master(master)
    weight.copy_(rounded)
    remainder.copy_(rest)


def split_master(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a float32 tensor as bf16 weights, rounded to nearest with ties to even, and 16-bit remainders (int16).

    The bits of the master are those of the weight times 2**16 plus the remainder, -32768 to 32767. One distance does
    not fit: a master exactly between two weights, above the even one, would be 32768 away. Its remainder is 32767, one
    float32 ulp nearer to the weight, which stays the rounded master. NaN stays NaN.
    """
    weight = master.to(torch.bfloat16)
    distance = master.view(torch.int32) - weight.view(torch.int16).to(torch.int32) * 65536
    return weight, distance.clamp(-32768, 32767).to(torch.int16)


def join_master(weight: torch.Tensor, remainder: torch.Tensor) -> torch.Tensor:
    """Return the float32 master of bf16 weights and their remainders."""
    return (weight.view(torch.int16).to(torch.int32) * 65536 + remainder).view(torch.float32)


@functools.cache
def compiled_update() -> Callable[..., None]:
    """Return `update`, compiled into one kernel without temporaries, for tensors from `rows`.

    For each set of dtypes there are at most four compilations: for one row, for rows, for one element, for elements.
    """
    return torch.compile(update, fullgraph=True)


def rows(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a flat tensor as rows of COLUMNS if its length allows it; another length compiles nothing again."""
    if tensor is None:
        return None
    shaped = tensor.view(-1, COLUMNS) if tensor.numel() % COLUMNS == 0 else tensor
    torch._dynamo.maybe_mark_dynamic(shaped, 0)
    return shaped


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True)
class WarmupCosine:
    """The rule as the factor of torch's LambdaLR: step n from 1, W warm-up steps.

    n <= W: n / (W + 1); then a cosine from 1 to `floor` over the remaining steps, the same as megatron-core's scheduler
    and NeMo's CosineAnnealing.
    """

    warmup_iterations: int
    train_iterations: int
    floor: float
    """MIN_LR / LR."""

    def __call__(self, steps_done: int) -> float:
        """Return the factor of the step that follows `steps_done` finished ones."""
        if steps_done < self.warmup_iterations:
            return (steps_done + 1) / (self.warmup_iterations + 1)
        progress = (steps_done - self.warmup_iterations) / (self.train_iterations - self.warmup_iterations)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))
