"""NeMo's own recipe of a model with our settings: every override comes from the settings map or is named here.

nemo_toolkit 2.3 and 2.7: `nemo/collections/llm/recipes/{llama31_8b,qwen25_7b,mistral_7b}.py`. A recipe describes what
`fiddle.build` makes; nothing is built here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fiddle
import nemo_run
import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.transformer.enums import AttnBackend
from nemo import lightning
from nemo.collections import llm
from nemo.collections.llm.recipes.precision import mixed_precision
from nemo.lightning import _strategy_lib

from train.mega.attention import local_layer
from train.settings_map.map import overrides
from utils.errors import ConfigError
from utils.models import MODELS, ModelSpec
from utils.settings.config import RunConfig

SEED_ARGUMENTS = {"seed": 1234, "fp8": False}
"""Defaults of `init_parallel_ranks`. Its only caller does not set them, so NeMo's weights would have seed 1234."""


def make(
    config: RunConfig, spec: ModelSpec, tokenizer: Any, callbacks: Sequence[Any], log_dir: Path
) -> nemo_run.Partial:
    """Return the recipe of the model with our settings and callbacks; NeMo's own log goes to `log_dir`.

    Raises ConfigError for a setting of the map that the recipe's objects do not have.
    """
    recipe = getattr(llm, str(MODELS[spec.name].nemo_recipe)).pretrain_recipe(
        dir=str(log_dir), name=spec.name, num_nodes=config.nodes, num_gpus_per_node=config.num_gpus // config.nodes
    )
    recipe.data = nemo_run.Config(
        llm.PreTrainingDataModule,
        tokenizer=tokenizer,
        index_mapping_dir=str(config.data_dir / "index_cache"),
        pin_memory=config.platform != "cpu",
    )
    recipe.trainer.strategy.ddp = nemo_run.Config(DistributedDataParallelConfig)
    recipe.trainer.callbacks = list(callbacks)  # without NeMo's TimingCallback: our recorder measures times
    for path, value in overrides("nemo", config, spec).items():
        set_argument(recipe, path, LIVE.get(path, lambda same: same)(value))
    recipe.model.config.cp_comm_type = None  # megatron-core's default; Mistral's recipe has another
    recipe.trainer.val_check_interval = config.train_iterations
    recipe.trainer.strategy.replace_progress_bar = False
    recipe.trainer.enable_progress_bar = False  # our recorder prints a line for each step
    recipe.trainer.enable_model_summary = False
    if config.platform == "cpu":
        # what a CPU lacks: an accelerator, and the kernels of TransformerEngine's layers; these are mega's on a CPU
        recipe.trainer.accelerator = "cpu"
        recipe.model.config.use_cpu_initialization = True
        recipe.model.config.transformer_layer_spec = local_layer
    return recipe


def set_argument(recipe: Any, path: str, value: Any) -> None:
    """Set the dotted `path` of a recipe; raise ConfigError where the class at that place has no such argument.

    The signature decides, because MegatronStrategy accepts any keyword and ignores those that it does not know. That of
    the constructor: up to Python 3.11.7 a class has the signature of NeMo's `IOMixin.__new__`, which takes anything.
    """
    *parents, name = path.split(".")
    holder = functools.reduce(getattr, parents, recipe)
    made: Any = fiddle.get_callable(holder)
    if name not in inspect.signature(made.__init__ if inspect.isclass(made) else made).parameters:
        raise ConfigError(f"settings map, nemo: {path}: {made.__name__} has no {name}")
    setattr(holder, name, value)


def set_weight_seed(seed: int) -> None:
    """Make NeMo draw its weights from `seed`; raise ConfigError for a NeMo whose function has other arguments."""
    function = _strategy_lib.init_parallel_ranks
    defaults = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            defaults[name] = parameter.default
    if list(defaults) != list(SEED_ARGUMENTS):
        raise ConfigError(
            f"SEED: init_parallel_ranks of this NeMo has {defaults}, wanted {SEED_ARGUMENTS}; use NeMo 2.3 to 2.7"
        )
    function.__defaults__ = (seed, False)


def _precision(name: str) -> nemo_run.Config:
    """Return the plugin of a precision, whose fields NeMo copies over those of model, optimizer and DDP."""
    if name == "fp8":
        return mixed_precision.bf16_with_fp8_mixed()
    dtype = torch.float32 if name == "fp32" else torch.bfloat16
    return nemo_run.Config(
        lightning.MegatronMixedPrecision,
        precision="32" if name == "fp32" else "bf16-mixed",
        params_dtype=dtype,
        pipeline_dtype=dtype,
        autocast_enabled=False,
    )


LIVE = {"model.config.attention_backend": AttnBackend.__getitem__, "trainer.plugins": _precision}
"""Conversion of names in the settings map into NeMo's objects, by key."""
