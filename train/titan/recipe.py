"""torchtitan's settings of a job and its description of the training: every override comes from the settings map or is
named here.

torchtitan 0.2.2: `config/job_config.py` (JobConfig), `protocols/train_spec.py` (TrainSpec). The paths of the map are
those of JobConfig; `model_args.` leads to the arguments of the model class.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchtitan.components.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer import OptimizersContainer, build_optimizers
from torchtitan.config import JobConfig
from torchtitan.protocols.train_spec import TrainSpec, register_train_spec

from train.common.loading import loader_arguments, tie_workers
from train.common.schedule import WarmupCosine
from train.settings_map.map import overrides
from train.titan import model as titan_model
from utils.dataset.gpt_dataset import micro_batches
from utils.errors import ConfigError
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
_numbers = itertools.count()


class TitanSamples(Dataset[tuple[dict[str, torch.Tensor], torch.Tensor]]):
    """GPTDataset's samples in torchtitan's form: inputs by name, and labels. A masked token gets label -100."""

    def __init__(self, dataset: Any) -> None:
        self.settings = dataset.config
        """GPTDataset's own configuration, for what is read back from the data."""
        self._dataset = dataset

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        sample = self._dataset[index]
        return {"input": sample["tokens"]}, torch.where(sample["loss_mask"] > 0, sample["labels"], -100)


@dataclass(frozen=True)
class Recipe:
    """torchtitan's settings of one training."""

    settings: JobConfig
    spec: TrainSpec
    model_arguments: Any


def make(config: RunConfig, spec: ModelSpec, dataset: Any) -> Recipe:
    """Return the recipe of a job, registered with torchtitan under the name in its settings.

    Raises ConfigError for a setting of the map that torchtitan does not have.
    """
    settings, arguments = JobConfig(), titan_model.arguments(spec)
    for path, value in overrides("titan", config, spec).items():
        place, _, rest = path.partition(".")
        if place == MODEL_ARGUMENTS:
            set_model_argument(arguments, rest, value)
        else:
            set_field(settings, path, value)
    settings.lr_scheduler.min_lr_factor = config.min_learning_rate / config.learning_rate
    settings.comm.train_timeout_seconds = TIMEOUT_SECONDS
    settings.model.name, settings.model.flavor = f"tprimat_{next(_numbers)}", spec.name
    described = dataclasses.replace(
        titan_model.published(spec),
        model_args={spec.name: arguments},
        build_tokenizer_fn=None,  # the data are encoded
        build_dataloader_fn=functools.partial(build_loader, config, dataset),
        build_optimizers_fn=build_decayed_optimizers,
        build_lr_schedulers_fn=build_schedulers,
        build_validator_fn=None,
    )
    register_train_spec(settings.model.name, described)
    return Recipe(settings, described, arguments)


def set_field(holder: Any, path: str, value: Any) -> None:
    """Set the dotted `path` of a dataclass; raise ConfigError where it has no such field."""
    *parents, name = path.split(".")
    for parent in parents:
        holder = getattr(holder, parent, None)
    fields = dataclasses.fields(holder) if dataclasses.is_dataclass(holder) else ()
    if name not in [field.name for field in fields]:
        raise ConfigError(f"settings map, titan: {path}: torchtitan has no such setting; wanted version 0.2.2")
    setattr(holder, name, value)


def set_model_argument(arguments: Any, path: str, value: Any) -> None:
    """Set an argument of the model class, under the name that the class has for it."""
    own = {field.name for field in dataclasses.fields(arguments)}
    renamed = OF_LLAMA3[path](value) if path in OF_LLAMA3 and path not in own else {path: value}
    for name, one in renamed.items():
        set_field(arguments, name, one)


def build_loader(
    config: RunConfig, dataset: Any, *, dp_world_size: int, dp_rank: int, tokenizer: Any, job_config: JobConfig
) -> DataLoader[Any]:
    """Return the micro batches of this data-parallel rank in Megatron's order."""
    order = list(micro_batches(config, dp_rank))
    loader = DataLoader(TitanSamples(dataset), batch_sampler=order, **loader_arguments(config))
    tie_workers(loader)
    return loader


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
