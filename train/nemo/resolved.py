"""`resolved_config` of NeMo, read back from its initialized trainer, model, optimizer, DDP and data."""

from __future__ import annotations

from typing import Any

from megatron.core import num_microbatches_calculator as calculator
from megatron.core import parallel_state

from train.common import read_back, trainer
from train.job.report import MismatchError
from train.mega import resolved as mega_resolved
from utils.models import ModelSpec
from utils.settings.config import RunConfig


def read(training: Any) -> dict[str, Any]:
    """Return the `resolved_config` section of a Lightning trainer before its first step.

    The caller adds `init`.
    """
    model = ddp_of(training)
    resolved = (
        _batch(training)
        | mega_resolved.model_facts(model)
        | _optimizer(training)
        | mega_resolved.distributed_facts(model)
    )
    return resolved | {"reasons": trainer.absent(resolved)}


def check(config: RunConfig, spec: ModelSpec, resolved: dict[str, Any]) -> None:
    """Raise MismatchError where a built object differs from the value that the settings map set in NeMo.

    This finds a setting that did not arrive, where a default of the recipe or of a library applies instead.
    """
    wrong = [text for _, text in read_back.differences("nemo", config, spec, resolved)]
    if wrong:
        raise MismatchError("NeMo did not build what was asked: " + "; ".join(wrong))


def ddp_of(training: Any) -> Any:
    """Return megatron-core's DistributedDataParallel of this rank, which holds the GPTModel."""
    (module,) = training.strategy.megatron_parallel
    return module.module


def _batch(training: Any) -> dict[str, Any]:
    loader = training.train_dataloader
    settings = loader.dataset.config
    return {
        "max_steps": training.max_steps,
        "micro_batch_size": calculator.get_micro_batch_size(),
        "gradient_accumulation": calculator.get_num_microbatches(),
        "global_batch_size": calculator.get_current_global_batch_size(),
        "sequence_length": settings.sequence_length,
        "num_gpus": training.world_size,
        "tp": parallel_state.get_tensor_model_parallel_world_size(),
        "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        "cp": parallel_state.get_context_parallel_world_size(),
        "dp": parallel_state.get_data_parallel_world_size(),
        "seed": settings.random_seed,
        "dataloader_workers": loader.num_workers,
    }


def _optimizer(training: Any) -> dict[str, Any]:
    optimizer = training.optimizers[0].mcore_optimizer
    inner = mega_resolved.inner_optimizer(optimizer)
    (schedule,) = (entry.scheduler for entry in training.lr_scheduler_configs)
    # NeMo has multiplied wd_mult into the weight decay of each group
    group = next(group for group in inner.param_groups if group["weight_decay"] != 0 or group["pre_wd_mult"] == 1.0)
    not_decayed = [group for group in inner.param_groups if group["pre_wd_mult"] == 0.0]
    return {
        "optimizer": f"{type(inner).__module__}.{type(inner).__name__}",
        "optimizer_state": mega_resolved.state_precision(optimizer),
        "lr": schedule.base_lrs[0],
        "min_lr": schedule.min_lr,
        "warmup_iters": schedule.warmup_steps,
        "weight_decay": group["weight_decay"],
        "beta1": group["betas"][0],
        "beta2": group["betas"][1],
        "adam_eps": group["eps"],
        "clip_grad": optimizer.config.clip_grad,
        "parameters_without_weight_decay": mega_resolved.parameters_in(not_decayed),
    }
