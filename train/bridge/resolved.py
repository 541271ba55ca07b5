"""`resolved_config` of Megatron-Bridge, read back from its built model, DDP, optimizer, schedule and loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.core import num_microbatches_calculator as calculator
from torch.utils.data import DataLoader

from train.mega import resolved as mega_resolved


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
    """Return the `resolved_config` section."""
    schedule = built.scheduler
    rates = schedule.max_lr, schedule.min_lr, _steps(schedule.lr_warmup_steps)
    return (
        mega_resolved.calculated_batch(built.recipe.train.train_iters, built.loader)
        | mega_resolved.model_facts(built.model)
        | mega_resolved.optimizer_facts(built.optimizer, *rates)
        | mega_resolved.distributed_facts(built.model)
    )


def unread_differences(built: Built) -> list[str]:
    """Return each setting without a key in `resolved_config` that has another value than was asked."""
    model, ddp, scheduler = built.model.module, built.model.ddp_config, built.scheduler
    gpt, decay = mega_resolved.gpt_of(model), mega_resolved.decayed_group(built.optimizer)["weight_decay"]
    found = {
        "loss reduction: calculate_per_token_loss": (False, gpt.config.calculate_per_token_loss),
        "search for NaN in gradients": (False, ddp.check_for_nan_in_grad),
        "schedule": ("cosine", scheduler.lr_decay_style),
        "steps of the schedule": (_steps(scheduler.lr_decay_steps), built.recipe.train.train_iters),
        "weight decay at start and end": ((scheduler.end_wd,) * 2, (scheduler.start_wd, decay)),
        "attention dropout": (0.0, gpt.config.attention_dropout),
        "hidden dropout": (0.0, gpt.config.hidden_dropout),
        "sequence parallel": (False, gpt.config.sequence_parallel),
        "residual stream in fp32": (False, gpt.config.fp32_residual_connection),
        "attention softmax in fp32": (True, gpt.config.attention_softmax_in_fp32),
        "CUDA graphs": ("none", gpt.config.cuda_graph_impl),
    }
    return [f"{name}: asked {asked!r}, built {is_!r}" for name, (asked, is_) in found.items() if asked != is_]


def _steps(samples: float) -> float:
    """Return optimizer steps; Bridge's schedule counts samples."""
    steps = samples / calculator.get_current_global_batch_size()
    return int(steps) if steps == int(steps) else steps
