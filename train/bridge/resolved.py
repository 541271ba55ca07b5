"""`resolved_config` of Megatron-Bridge, read back from its built model, DDP, optimizer, schedule and loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import num_microbatches_calculator as calculator
from megatron.core import parallel_state
from torch.utils.data import DataLoader

from train.common import read_back, trainer
from train.job.report import MismatchError
from train.mega import resolved as mega_resolved
from utils.models import ModelSpec
from utils.settings.config import RunConfig


@dataclass
class Built:
    """The objects of one rank that Bridge has built, before its first step."""

    recipe: Any
    """Its `ConfigContainer` after validation; only the number of steps is read from it, which no object holds."""
    model: Any
    optimizer: Any
    scheduler: Any
    loader: DataLoader[Any]


def read(built: Built) -> dict[str, Any]:
    """Return the `resolved_config` section; the caller adds `init`."""
    resolved = (
        _batch(built)
        | mega_resolved.model_facts(built.model)
        | _optimizer(built)
        | mega_resolved.distributed_facts(built.model)
    )
    return resolved | {"reasons": trainer.absent(resolved)}


def check(config: RunConfig, spec: ModelSpec, resolved: dict[str, Any]) -> None:
    """Raise MismatchError where a built object differs from the value that the settings map set in Bridge.

    This finds a setting that did not arrive, where a default of the recipe or of a library applies instead.
    """
    wrong = [text for _, text in read_back.differences("bridge", config, spec, resolved)]
    if wrong:
        raise MismatchError("Megatron-Bridge did not build what was asked: " + "; ".join(wrong))


def check_unread(built: Built) -> None:
    """Raise MismatchError where a setting without a key in `resolved_config` has another value than was asked."""
    model, ddp, scheduler = built.model.module, built.model.ddp_config, built.scheduler
    gpt = mega_resolved.gpt_of(model)
    found = {
        "loss reduction: calculate_per_token_loss": (False, gpt.config.calculate_per_token_loss),
        "search for NaN in gradients": (False, ddp.check_for_nan_in_grad),
        "schedule": ("cosine", scheduler.lr_decay_style),
        "steps of the schedule": (_steps(built, scheduler.lr_decay_steps), built.recipe.train.train_iters),
        "weight decay at start and end": ((scheduler.end_wd,) * 2, (scheduler.start_wd, _decay(built))),
        "attention dropout": (0.0, gpt.config.attention_dropout),
        "hidden dropout": (0.0, gpt.config.hidden_dropout),
        "sequence parallel": (False, gpt.config.sequence_parallel),
        "residual stream in fp32": (False, gpt.config.fp32_residual_connection),
        "attention softmax in fp32": (True, gpt.config.attention_softmax_in_fp32),
        "CUDA graphs": ("none", gpt.config.cuda_graph_impl),
    }
    wrong = [f"{name}: asked {asked!r}, built {is_!r}" for name, (asked, is_) in found.items() if asked != is_]
    if wrong:
        raise MismatchError("Megatron-Bridge did not build what was asked: " + "; ".join(wrong))


def _batch(built: Built) -> dict[str, Any]:
    samples: Any = built.loader.dataset
    return {
        "max_steps": built.recipe.train.train_iters,
        "micro_batch_size": calculator.get_micro_batch_size(),
        "gradient_accumulation": calculator.get_num_microbatches(),
        "global_batch_size": calculator.get_current_global_batch_size(),
        "sequence_length": samples.config.sequence_length,
        "num_gpus": torch.distributed.get_world_size(),
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "cp": parallel_state.get_context_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
        "seed": samples.config.random_seed,
        "dataloader_workers": built.loader.num_workers,
    }


def _steps(built: Built, samples: float) -> float:
    """Return optimizer steps; Bridge's schedule counts samples."""
    steps = samples / calculator.get_current_global_batch_size()
    return int(steps) if steps == int(steps) else steps


def _decay(built: Built) -> float:
    """Return the weight decay of the matrices, which the schedule has multiplied into each group."""
    groups = mega_resolved.inner_optimizer(built.optimizer).param_groups
    return float(next(group["weight_decay"] for group in groups if group.get("wd_mult", 1.0) == 1.0))


def _optimizer(built: Built) -> dict[str, Any]:
    optimizer, schedule = built.optimizer, built.scheduler
    inner = mega_resolved.inner_optimizer(optimizer)
    group = next(group for group in inner.param_groups if group.get("wd_mult", 1.0) == 1.0)
    not_decayed = [group for group in inner.param_groups if group.get("wd_mult", 1.0) == 0.0]
    return {
        "optimizer": f"{type(inner).__module__}.{type(inner).__name__}",
        "optimizer_state": mega_resolved.state_precision(optimizer),
        "lr": schedule.max_lr,
        "min_lr": schedule.min_lr,
        "warmup_iters": _steps(built, schedule.lr_warmup_steps),
        "weight_decay": _decay(built),
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "adam_eps": group["eps"],
        "clip_grad": optimizer.config.clip_grad,
        "parameters_without_weight_decay": mega_resolved.parameters_in(not_decayed),
    }
