"""The torchtitan model of a spec: torchtitan 0.2.2's own classes and their converter of checkpoints.

Its dense models are two: `llama3`, which scales rotary frequencies as Llama 3.1 does, and `qwen3`, which does not and
can normalize queries and keys. Both have RMSNorm, SwiGLU, grouped queries and causal attention. A spec with scaled
frequencies gets the first class, another the second. Neither has a bias; `QkvBias` adds Qwen 2.5's through
torchtitan's own interface for changes of a model. Neither has an attention window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.models import llama3, qwen3
from torchtitan.protocols.model_converter import register_model_converter
from torchtitan.protocols.train_spec import TrainSpec

from train.common.weights import WeightSource, shapes
from train.job.report import MismatchError
from utils.models import ModelSpec

QKV_BIAS = "tprimat_qkv_bias"
"""Name of `QkvBias` in `model.converters` of torchtitan's settings; train/settings_map/titan_column.py sets it."""
WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""Parts that recomputation and torch.compile add to the name of a parameter."""


class QkvBias:
    """A model converter of torchtitan (`protocols/model_converter.py`): queries, keys and values get a bias."""

    def __init__(self, job_config: Any, parallel_dims: Any) -> None:
        """Take what torchtitan gives every converter; nothing of it is needed."""

    def convert(self, model: nn.Module) -> None:
        """Replace the three linear layers of each attention; their forward pass stays torchtitan's call of a layer."""
        for layer in model.get_submodule("layers").children():
            attention: Any = layer.attention
            for name in ("wq", "wk", "wv"):
                plain = getattr(attention, name)
                where = {"device": plain.weight.device, "dtype": plain.weight.dtype}
                setattr(attention, name, nn.Linear(plain.in_features, plain.out_features, bias=True, **where))

    def post_optimizer_hook(self, model: nn.Module | Sequence[nn.Module]) -> None:
        """Do nothing after a step."""


register_model_converter(QkvBias, QKV_BIAS)


def published(spec: ModelSpec) -> TrainSpec:
    """Return torchtitan's description of the model family whose class can build the spec."""
    return (qwen3 if spec.rope_scaling is None else llama3).get_train_spec()


def arguments(spec: ModelSpec) -> Any:
    """Return the arguments of the model class with its defaults; train/titan/recipe.py sets them."""
    return qwen3.Qwen3ModelArgs() if spec.rope_scaling is None else llama3.TransformerModelArgs()


@torch.no_grad()
def fill(model: nn.Module, adapter: Any, spec: ModelSpec, source: WeightSource, dtype: torch.dtype) -> None:
    """Fill every parameter from `source`, rounded to numbers of `dtype`; a sharded one with this rank's part.

    `adapter` is torchtitan's converter from transformers' names and layout (`from_hf`), which also puts the channels of
    queries and keys into the order of `llama3`. Raises MismatchError where model and spec have other parameters.
    """
    missing = dict(parameters(model))
    for name in shapes(spec):
        # from_hf knows weights only; a class with biases keeps the order of channels, so they go where their weights do
        ((converted, tensor),) = adapter.from_hf({name.replace(".bias", ".weight"): source(name)}).items()
        if name.endswith(".bias"):
            converted = converted.replace(".weight", ".bias")
        if converted not in missing:
            raise MismatchError(f"torchtitan built a model without {converted}, which {spec.name} has")
        copy_part(missing.pop(converted), tensor.to(dtype).float())
    if missing:
        raise MismatchError(f"torchtitan built a model with {next(iter(missing))}, which {spec.name} does not have")


def zero_biases(model: nn.Module) -> None:
    """Set the biases to 0, which torchtitan's own initialization does not know."""
    for name, parameter in parameters(model):
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)


def copy_part(parameter: torch.Tensor, whole: torch.Tensor) -> None:
    """Copy a whole tensor into a parameter, of which this rank may hold a part; no rank sends anything."""
    whole = whole.to(parameter.device)
    if isinstance(parameter, DTensor):
        whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(whole)


def parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every parameter with its name in torchtitan's model, without the parts that wrappers add."""
    for name, parameter in model.named_parameters():
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        yield name, parameter
