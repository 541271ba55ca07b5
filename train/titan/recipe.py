"""torchtitan's settings of a job and its description of the training: every override comes from the settings map or is
named here.

torchtitan 0.2.2: `config/job_config.py` (JobConfig), `protocols/train_spec.py` (TrainSpec). The paths of the map are
those of JobConfig; `model_args.` leads to the arguments of the model class.

torchtitan's dense models are two: `llama3`, which scales rotary frequencies as Llama 3.1 does, and `qwen3`, which does
not and can normalize queries and keys. Both have RMSNorm, SwiGLU, grouped queries and causal attention. A spec with
scaled frequencies gets the first class, another the second. Neither has a bias; `QkvBias` adds Qwen 2.5's through
torchtitan's own interface for changes of a model. Neither has an attention window.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.data import DataLoader
from torchtitan.components.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer import OptimizersContainer, build_optimizers
from torchtitan.config import JobConfig
from torchtitan.models import llama3, qwen3
from torchtitan.protocols.model_converter import register_model_converter
from torchtitan.protocols.train_spec import register_train_spec

from train.common.adamw import WarmupCosine
from train.common.loading import LabelledSamples, loader_of_rank
from train.common.weights import WeightSource, shapes
from train.job.report import MismatchError
from train.settings_map.map import overrides, set_field
from utils.models import ModelSpec
from utils.settings.config import RunConfig

MODEL_ARGUMENTS = "model_args"
OF_LLAMA3: dict[str, Callable[[Any], dict[str, Any]]] = {
    # its feed-forward size is 8/3 of the width, rounded up to a multiple: once the size itself
    "hidden_dim": lambda size: {"multiple_of": size, "ffn_dim_multiplier": None},
}
"""Arguments that the class of `llama3` has under other names."""
TIMEOUT_SECONDS = 1800
"""Time of a collective after step 1; torchtitan's 100 seconds would end a rank that waits for a slow disk."""
QKV_BIAS = "tprimat_qkv_bias"
"""Name of `QkvBias` in `model.converters` of torchtitan's settings; train/settings_map/titan_column.py sets it."""
WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""Parts that recomputation and torch.compile add to the name of a parameter."""
_numbers = itertools.count()


def make(config: RunConfig, spec: ModelSpec, dataset: Any) -> tuple[JobConfig, Any]:
    """Return torchtitan's settings of a job, and its converter of weights from transformers' names and layout.

    The training is registered with torchtitan under the name in its settings.
    Raises ConfigError for a setting of the map that torchtitan does not have.
    """
    settings = JobConfig()
    published, arguments = (
        (qwen3.get_train_spec(), qwen3.Qwen3ModelArgs())
        if spec.rope_scaling is None
        else (llama3.get_train_spec(), llama3.TransformerModelArgs())
    )
    for path, value in overrides("titan", config, spec).items():
        place, _, rest = path.partition(".")
        if place != MODEL_ARGUMENTS:
            set_field("titan", settings, path, value)
            continue
        is_own = rest in {field.name for field in dataclasses.fields(arguments)}
        for name, one in ({rest: value} if is_own or rest not in OF_LLAMA3 else OF_LLAMA3[rest](value)).items():
            set_field("titan", arguments, name, one)
    settings.lr_scheduler.min_lr_factor = config.min_learning_rate / config.learning_rate
    settings.comm.train_timeout_seconds = TIMEOUT_SECONDS
    settings.model.name, settings.model.flavor = f"tprimat_{next(_numbers)}", spec.name
    described = dataclasses.replace(
        published,
        model_args={spec.name: arguments},
        build_tokenizer_fn=None,  # the data are encoded
        build_dataloader_fn=functools.partial(build_loader, config, dataset),
        build_optimizers_fn=build_decayed_optimizers,
        build_lr_schedulers_fn=build_schedulers,
        build_validator_fn=None,
    )
    register_train_spec(settings.model.name, described)
    assert described.state_dict_adapter is not None
    return settings, described.state_dict_adapter(arguments, None)


def build_loader(
    config: RunConfig, dataset: Any, *, dp_world_size: int, dp_rank: int, tokenizer: Any, job_config: JobConfig
) -> DataLoader[Any]:
    """Return the micro batches of this data-parallel rank in Megatron's order and torchtitan's form."""
    samples = LabelledSamples(dataset, config.training_samples, lambda tokens, labels: ({"input": tokens}, labels))
    return loader_of_rank(config, samples, dp_rank)


def build_decayed_optimizers(model_parts: Sequence[nn.Module], *arguments: Any) -> OptimizersContainer:
    """Return torchtitan's optimizers; weights of one dimension (norms, biases) get no weight decay, as in Megatron."""
    built = build_optimizers(list(model_parts), *arguments)
    for optimizer in built:
        (group,) = optimizer.param_groups
        flat = [parameter for parameter in group["params"] if parameter.ndim == 1]
        group["params"] = [parameter for parameter in group["params"] if parameter.ndim != 1]
        optimizer.add_param_group({"params": flat, "weight_decay": 0.0})
    return built


def build_schedulers(optimizers: OptimizersContainer, settings: Any, training_steps: int) -> LRSchedulersContainer:
    """Return torchtitan's schedulers with the suite's rule; its own warms up by n / W and holds the peak for a step."""
    steps = settings.total_steps or training_steps
    return LRSchedulersContainer(optimizers, WarmupCosine(settings.warmup_steps, steps, settings.min_lr_factor))


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


@torch.no_grad()
def fill(model: nn.Module, adapter: Any, spec: ModelSpec, source: WeightSource, dtype: torch.dtype) -> None:
    """Fill every parameter from `source`, rounded to numbers of `dtype`; a sharded one with this rank's part.

    `adapter` is torchtitan's converter (`from_hf`), which also puts the channels of
    queries and keys into the order of `llama3`. Raises MismatchError where model and spec have other parameters.
    """
    missing = dict(parameters(model))
    together: dict[str, list[str]] = {}  # the experts of a layer are one parameter
    for name in shapes(spec):
        together.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(name)
    for name, names in together.items():
        # from_hf knows weights only; a class with biases keeps the order of channels, so they go where their weights do
        ((converted, tensor),) = adapter.from_hf(
            {one.replace(".bias", ".weight"): source(one) for one in names}
        ).items()
        if name.endswith(".bias"):
            converted = converted.replace(".weight", ".bias")
        if converted not in missing:
            raise MismatchError(f"torchtitan built a model without {converted}, which {spec.name} has")
        _copy_part(missing.pop(converted), tensor.to(dtype).float())
    if missing:
        raise MismatchError(f"torchtitan built a model with {next(iter(missing))}, which {spec.name} does not have")


def zero_biases(model: nn.Module) -> None:
    """Set the biases to 0, which torchtitan's own initialization does not know."""
    for name, parameter in parameters(model):
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)


def _copy_part(parameter: torch.Tensor, whole: torch.Tensor) -> None:
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
