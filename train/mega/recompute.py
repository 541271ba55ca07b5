"""RECOMPUTE for megatron-core: activations that are computed again in the backward pass instead of being kept.

- `full`: megatron-core's own; each layer keeps its input and runs again.
- `selective`, local layers: the results of both norms and of the MLP's activation function, which only the linear layer
  after each keeps, are computed again from what is kept anyway. megatron-core 0.16.1 has this for norms only, and needs
  TransformerEngine for it (`CheckpointWithoutOutput` of megatron/core/tensor_parallel/random.py takes fp8 for granted).
- `selective`, layers of TransformerEngine, whose linear layers contain the norms: megatron-core's `mlp`, the whole MLP.

Both give the numbers of a training without: the same functions run on the same inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_swiglu import swiglu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    LinearWithGradAccumulationAndAsyncCommunication as Linear,
    RowParallelLinear,
)
from megatron.core.utils import get_tensor_model_parallel_group_if_none

Recipe = Callable[[], torch.Tensor]
LINEAR_SETTINGS = tuple(inspect.signature(Linear.forward).parameters)[3:]
"""Names of what megatron-core's function of a linear layer takes after input and weight, in its order.

0.19 appended `gtp_remat_size`."""


def settings(recompute: str, with_engine: bool, *, has_experts: bool = False) -> dict[str, Any]:
    """Return megatron-core's settings for a value of RECOMPUTE; of experts the whole layer of them is `moe`."""
    selected = []  # in local layers the linear layers compute their inputs again (`use_recipes`)
    if has_experts:
        selected = ["moe"]
    elif with_engine:
        selected = ["mlp"]
    kinds: dict[str, dict[str, Any]] = {
        "none": {},
        "selective": {"recompute_granularity": "selective", "recompute_modules": selected},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }
    return kinds[recompute]


class _LinearFromRecipe(torch.autograd.Function):
    """megatron-core's function of a linear layer, which saves its weight and how to compute its input."""

    @staticmethod
    def forward(ctx: Any, input_: torch.Tensor, weight: torch.Tensor, recipe: Recipe, *others: Any) -> torch.Tensor:
        # in place of autograd's context; it keeps nothing: input and weight are given again before the backward pass
        ctx.inner, ctx.recipe = SimpleNamespace(save_for_backward=lambda *_: None), recipe
        ctx.save_for_backward(weight)
        return Linear.forward(ctx.inner, input_, weight, *others)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with torch.no_grad():
            ctx.inner.saved_tensors = (ctx.recipe(), *ctx.saved_tensors)
        input_gradient, weight_gradient, *rest = Linear.backward(ctx.inner, gradients[0])
        ctx.inner = ctx.recipe = None
        return input_gradient, weight_gradient, None, *rest


class InputFromRecipe:
    """Part of a linear layer that keeps for its backward pass how to compute its input, and not the input."""

    recipe: Recipe | None = None
    """Function that computes the next input again; without one the layer keeps its input."""

    def _forward_impl(self, input: torch.Tensor, weight: torch.Tensor, **settings: Any) -> torch.Tensor:
        """Return the product, as the method of megatron-core's class that this one replaces."""
        # taken once: a call that nothing precedes, as in evaluation, keeps its input
        recipe, self.recipe = self.recipe, None
        if recipe is None:
            return super()._forward_impl(input, weight, **settings)  # type: ignore[misc]
        settings["tp_group"] = get_tensor_model_parallel_group_if_none(settings["tp_group"])
        return _LinearFromRecipe.apply(input, weight, recipe, *linear_values(settings))


class ColumnParallelFromRecipe(InputFromRecipe, ColumnParallelLinear):
    """megatron-core's linear layer split by its outputs, with `InputFromRecipe`."""


class RowParallelFromRecipe(InputFromRecipe, RowParallelLinear):
    """megatron-core's linear layer split by its inputs, with `InputFromRecipe`."""


def use_recipes(layer_spec: Any) -> None:
    """Put the linear layers that follow a norm or the activation function into the specification of a local layer."""
    mlp = mlp_parts(layer_spec)
    layer_spec.submodules.self_attention.submodules.linear_qkv = ColumnParallelFromRecipe
    mlp.linear_fc1 = ColumnParallelFromRecipe
    mlp.linear_fc2 = RowParallelFromRecipe


def connect(model: GPTModel) -> None:
    """Give each of these linear layers its recipe whenever what comes before it has run."""
    activate = _fused_activation if model.config.bias_activation_fusion else _plain_activation
    for layer in model.decoder.layers:
        _follow(layer.input_layernorm, layer.self_attention.linear_qkv, _normalize)
        _follow(layer.pre_mlp_layernorm, layer.mlp.linear_fc1, _normalize)
        _follow(layer.mlp.linear_fc1, layer.mlp.linear_fc2, lambda _, __, output: partial(activate, output[0]))


def _follow(module: torch.nn.Module, linear: InputFromRecipe, recipe_after: Callable[..., Recipe]) -> None:
    """Give `linear` a recipe made of `module`, its arguments and its result; the recipe keeps only what it needs."""

    def remember(*run: Any) -> None:
        linear.recipe = recipe_after(*run)

    module.register_forward_hook(remember)


def _normalize(norm: torch.nn.Module, arguments: tuple[torch.Tensor, ...], _: torch.Tensor) -> Recipe:
    return partial(norm.forward, *arguments)


def _plain_activation(gate_and_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _fused_activation(gate_and_up: torch.Tensor) -> torch.Tensor:
    flat = gate_and_up.view(-1, gate_and_up.shape[-1])
    return swiglu(flat).view(*gate_and_up.shape[:-1], -1)


def linear_values(settings: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values of LINEAR_SETTINGS from the named arguments of a linear layer; None for one not named."""
    return tuple(settings.get(name) for name in LINEAR_SETTINGS)


def mlp_parts(layer_spec: Any) -> Any:
    """Return the parts of the MLP (`linear_fc1`, `linear_fc2`) in a layer's specification, to be replaced in place.

    Up to 0.16 a specification of its own; in 0.19 a `functools.partial` that builds the MLP.
    """
    mlp = layer_spec.submodules.mlp
    return mlp.keywords["submodules"] if isinstance(mlp, partial) else mlp.submodules
