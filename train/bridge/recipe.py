"""Megatron-Bridge's own recipe with our settings: every override comes from the settings map or is named here.

megatron-bridge 0.6.2: `megatron/bridge/recipes/{llama,qwen}`. A recipe is a `ConfigContainer` of dataclasses, which
`pretrain` validates and from which it builds everything; nothing is built here.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.metadata import version
from typing import Any
from unittest import mock

import torch
from megatron.bridge import AutoBridge
from megatron.bridge.data.base import DatasetProvider
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.core.transformer.enums import AttnBackend

from train.bridge import cpu as bridge_cpu
from train.hf.model import build_config
from train.settings_map.map import overrides, set_field
from utils.errors import ConfigError
from utils.models import MODELS, ModelSpec
from utils.settings.config import RunConfig


@dataclasses.dataclass(kw_only=True)
class SuiteData(DatasetProvider):
    """Our data set in Bridge's place for one: `build` returns it, Bridge's own sampler and loader give it out."""

    build: Callable[[], Any]
    dataloader_type: Any = None

    def build_datasets(self, context: Any) -> tuple[Any, None, None]:
        """Return the data set of the training; there is no validation."""
        return self.build(), None, None


def make(config: RunConfig, spec: ModelSpec, build_dataset: Callable[[], Any]) -> ConfigContainer:
    """Return the recipe of the model with our settings; `build_dataset` makes the data set when Bridge asks for it.

    Raises ConfigError for a setting of the map that the recipe's objects do not have.
    """
    with _from_spec(config, spec):
        recipe = recipe_of(spec.name)()
    recipe.dataset = SuiteData(build=build_dataset)
    recipe.env_vars = {}  # the map has the variables of every framework
    recipe.comm_overlap = None  # the map sets what it would set
    recipe.model.cp_comm_type = None  # megatron-core's default; of a model with a window Bridge has another
    recipe.logger.logging_level = logging.WARNING  # its lines are not read; the recorder prints each step
    for path, value in overrides("bridge", config, spec).items():
        set_field("bridge", recipe, path, LIVE.get(path, lambda same: same)(value))
    if config.platform == "cpu":
        bridge_cpu.adapt(recipe)
    return recipe


def recipe_of(model: str) -> Callable[[], ConfigContainer]:
    """Return Bridge's function that makes the recipe of a model; raise ConfigError for a release without it."""
    module, _, name = str(MODELS[model].bridge_recipe).rpartition(".")
    function: Callable[[], ConfigContainer] | None
    function = getattr(import_module(f"megatron.bridge.recipes.{module}"), name, None)
    if function is None:
        raise ConfigError(f"{model}: Megatron-Bridge {version('megatron-bridge')} has no {name}, wanted that of 0.6.2")
    return function


def _from_spec(config: RunConfig, spec: ModelSpec) -> AbstractContextManager[Any]:
    """Give a recipe transformers' configuration of the spec where it would read the release's from the Hub."""
    described = build_config(spec, config.init_std)
    described.architectures = [MODELS[spec.name].transformers + "ForCausalLM"]
    from_spec = classmethod(lambda cls, *_, **__: cls.from_hf_config(described))
    return mock.patch.object(AutoBridge, "from_hf_pretrained", from_spec)


def _precision(name: str) -> MixedPrecisionConfig:
    """Return the settings of a precision, which Bridge copies over those of model, optimizer and DDP."""
    dtype = torch.float32 if name == "fp32" else torch.bfloat16
    return MixedPrecisionConfig(
        fp32=name == "fp32", bf16=name != "fp32", params_dtype=dtype, pipeline_dtype=dtype, autocast_enabled=False
    )


LIVE: dict[str, Callable[[Any], Any]] = {
    "mixed_precision": _precision,
    "model.attention_backend": AttnBackend.__getitem__,
}
"""Conversion of names in the settings map into Bridge's objects, by key."""
