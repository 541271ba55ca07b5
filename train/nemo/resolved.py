"""`resolved_config` of NeMo, read back from its initialized trainer, model, optimizer, DDP and data."""

from __future__ import annotations

from typing import Any

from train.mega import resolved as mega_resolved


def read(training: Any) -> dict[str, Any]:
    """Return the `resolved_config` section of a Lightning trainer before its first step."""
    model = ddp_of(training)
    (schedule,) = (entry.scheduler for entry in training.lr_scheduler_configs)
    rates = schedule.base_lrs[0], schedule.min_lr, schedule.warmup_steps
    return (
        mega_resolved.calculated_batch(training.max_steps, training.train_dataloader)
        | mega_resolved.model_facts(model)
        | mega_resolved.optimizer_facts(training.optimizers[0].mcore_optimizer, *rates)
        | mega_resolved.distributed_facts(model)
    )


def ddp_of(training: Any) -> Any:
    """Return megatron-core's DistributedDataParallel of this rank, which holds the GPTModel."""
    (module,) = training.strategy.megatron_parallel
    return module.module
