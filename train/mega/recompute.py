"""RECOMPUTE for megatron-core: activations that are computed again in the backward pass instead of being kept.

- `full`: megatron-core's own; each layer keeps its input and runs again.
- `selective`, local layers: the results of both norms and of the MLP's activation function, which only the linear layer
  after each keeps, are computed again from what is kept anyway. megatron-core 0.16.1 has this for norms only, and needs
  TransformerEngine for it (`CheckpointWithoutOutput` of megatron/core/tensor_parallel/random.py takes fp8 for granted).
- `selective`, layers of TransformerEngine, whose linear layers contain the norms: megatron-core's `mlp`, the whole MLP.

Both give the numbers of a training without: the same functions run on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_swiglu import swiglu
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

Recipe = Callable[[], torch.Tensor]


def settings(recompute: str, with_engine: bool) -> dict[str, Any]:
    """Return megatron-core's settings for a value of RECOMPUTE."""
    if recompute == "none":
        return {}
    if recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {"recompute_granularity": "selective", "recompute_modules": ["mlp"] if with_engine else []}


class InputFromRecipe:
    """Part of a linear layer whose input is emptied after the forward pass and computed again before the backward.

    The layer still saves the tensor of its input; only the memory behind it goes and comes back. (Hooks on saved
    tensors would replace the weight as well, by a tensor without the attributes that its gradient's buffer needs.)
    """

    recipe: Recipe | None = None
    """Function that computes the next input again; without one the layer keeps its input."""

    def forward(self, input_: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Run the linear layer, empty its input, and have it filled when the gradient of the result arrives."""
        recipe, self.recipe = self.recipe, None
        result = super().forward(input_, *arguments, **keywords)  # type: ignore[misc]
        if recipe is not None and result[0].requires_grad:
            result[0].register_hook(_filling(input_.untyped_storage(), recipe))
        return result


class ColumnParallelFromRecipe(InputFromRecipe, ColumnParallelLinear):
    """megatron-core's linear layer split by its outputs, with `InputFromRecipe`."""


class RowParallelFromRecipe(InputFromRecipe, RowParallelLinear):
    """megatron-core's linear layer split by its inputs, with `InputFromRecipe`."""


def use_recipes(layer_spec: Any) -> None:
    """Put the linear layers that follow a norm or the activation function into the specification of a local layer."""
    parts = layer_spec.submodules
    parts.self_attention.submodules.linear_qkv = ColumnParallelFromRecipe
    parts.mlp.submodules.linear_fc1 = ColumnParallelFromRecipe
    parts.mlp.submodules.linear_fc2 = RowParallelFromRecipe


def connect(model: GPTModel) -> None:
    """Give each of these linear layers its recipe whenever what comes before it has run."""
    is_fused = model.config.bias_activation_fusion
    for layer in model.decoder.layers:
        _follow(layer.input_layernorm, layer.self_attention.linear_qkv)
        _follow(layer.pre_mlp_layernorm, layer.mlp.linear_fc1)
        activate = _fused_activation if is_fused else _plain_activation
        layer.mlp.linear_fc1.register_forward_hook(_activation_hook(layer.mlp.linear_fc2, activate))


def is_active(model: GPTModel) -> bool:
    """Return whether the layers of a model compute norms and activation function again."""
    return isinstance(model.decoder.layers[0].mlp.linear_fc2, InputFromRecipe)


def _filling(storage: torch.UntypedStorage, recipe: Recipe) -> Callable[[torch.Tensor], None]:
    """Empty the memory of a tensor; return the hook that fills it again."""
    size = storage.nbytes()
    storage.resize_(0)

    def fill(_: torch.Tensor) -> None:
        with torch.no_grad():
            again = recipe().untyped_storage()
        storage.resize_(size)
        storage.copy_(again)

    return fill


def _follow(norm: torch.nn.Module, linear: InputFromRecipe) -> None:
    def remember(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...], __: torch.Tensor) -> None:
        linear.recipe = lambda: norm.forward(*arguments)

    norm.register_forward_hook(remember)


def _activation_hook(linear: InputFromRecipe, activate: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def remember(_: torch.nn.Module, __: Any, output: tuple[torch.Tensor, None]) -> None:
        linear.recipe = lambda: activate(output[0])

    return remember


def _plain_activation(gate_and_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _fused_activation(gate_and_up: torch.Tensor) -> torch.Tensor:
    flat = gate_and_up.view(-1, gate_and_up.shape[-1])
    return swiglu(flat).view(*gate_and_up.shape[:-1], -1)
