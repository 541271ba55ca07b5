"""Pretraining with Megatron-core itself: its model, DDP, distributed optimizer, schedules and data set; our loop.

Started by torchrun through train/launch.py, on AMD, NVIDIA and (over gloo) on a CPU. Reading order: `Mega.run` ->
`build` -> `run`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

if torch.cuda.is_available():  # before the import of megatron-core, which takes at that time what it finds
    from train.mega import engine, kernels

    engine.hide_if_unusable()
    kernels.install()
else:
    from train.mega.cpu import redirect

    redirect()

from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.utils import get_model_config

from train.common import trainer
from train.common.kernels import Facts
from train.common.loading import loader_of_rank
from train.common.trainer import Data, Ready
from train.common.weights import WeightSource
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.mega import resolved as mega_resolved, weights as mega_weights
from train.mega.model import build_model, initialize_parallel
from train.mega.optimizer import DeviceNormOptimizer, build_optimizer
from utils.models import ModelSpec
from utils.settings.config import RunConfig


@dataclass
class Training:
    """The objects that one rank trains with."""

    model: DistributedDataParallel
    optimizer: DeviceNormOptimizer
    scheduler: OptimizerParamScheduler
    loader: DataLoader[Any]


def build(config: RunConfig, spec: ModelSpec, source: WeightSource | None, dataset: Any) -> Training:
    """Build the objects that this rank trains with; weights from `source`, or megatron-core's own if None.

    torch.distributed and megatron-core's groups must be initialized (`initialize_parallel`).
    """
    model = build_model(config, spec)
    if source is not None:
        mega_weights.fill(model, spec, source)
    settings = get_model_config(model)
    # megatron-core's wrapper casts inputs to bf16 and the output of the last stage to float32
    module = model if config.precision == "fp32" else Float16Module(settings, model)
    # communication overlaps with the backward pass only where there are other ranks and a GPU
    overlap = config.platform != "cpu" and config.data_parallel_size > 1
    communication = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        grad_reduce_in_fp32=config.gradient_dtype == "fp32",
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        average_in_collective=overlap,  # gloo has no average; elsewhere it would be a pass over the gradients
        check_for_nan_in_grad=False,
    )
    distributed = DistributedDataParallel(settings, communication, module)
    distributed.broadcast_params()
    optimizer = build_optimizer(config, distributed)
    # warm-up from LR/(W+1) gives step n (from 1) LR*n/(W+1), the rule of every framework here
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=config.learning_rate / (config.warmup_iterations + 1),
        max_lr=config.learning_rate,
        min_lr=config.min_learning_rate,
        lr_warmup_steps=config.warmup_iterations,
        lr_decay_steps=config.train_iterations,
        lr_decay_style="cosine",
        start_wd=config.weight_decay,
        end_wd=config.weight_decay,
        wd_incr_steps=config.train_iterations,
        wd_incr_style="constant",
    )
    settings.finalize_model_grads_func = finalize_model_grads
    settings.grad_scale_func = optimizer.scale_loss
    if distributed.ddp_config.overlap_grad_reduce:
        settings.no_sync_func = distributed.no_sync
    loader = loader_of_rank(config, dataset, parallel_state.get_data_parallel_rank())
    return Training(distributed, optimizer, scheduler, loader)


def loss_of(losses: torch.Tensor, loss_mask: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the mean loss of a micro batch, nats per token, and the same for the report.

    megatron-core divides the first in place by the number of micro batches, so the second is a copy.
    """
    mean = (losses.float() * loss_mask).sum() / loss_mask.sum()
    return mean, {"lm_loss": mean.detach().clone()}


def _forward_step(batches: Iterator[dict[str, torch.Tensor]], model: torch.nn.Module) -> tuple[torch.Tensor, Any]:
    batch = {key: tensor.cuda(non_blocking=True) for key, tensor in next(batches).items()}
    output = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, lambda losses: loss_of(losses, batch["loss_mask"])


def run(config: RunConfig, training: Training, recorder: StepRecorder) -> None:
    """Train all steps on this rank and record each; ends with the losses averaged over ranks."""
    forward_backward = get_forward_backward_func()
    batches = recorder.timed(training.loader)
    training.model.train()
    recorder.start()
    for _ in range(config.train_iterations):
        # before the schedule's step, which sets the rate of the next one
        learning_rate = training.optimizer.param_groups[0]["lr"]
        training.model.zero_grad_buffer()
        training.optimizer.zero_grad()
        reports = forward_backward(
            forward_step_func=_forward_step,
            data_iterator=batches,
            model=[training.model],
            num_microbatches=config.gradient_accumulation,
            seq_length=config.sequence_length,
            micro_batch_size=config.micro_batch_size,
            forward_only=False,
        )
        _, grad_norm, _ = training.optimizer.step()
        training.scheduler.step(increment=1)
        # only the last pipeline stage has losses
        loss = torch.stack([report["lm_loss"] for report in reports]).mean() if reports else None
        recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate)
    recorder.merge_ranks(parallel_state.get_data_parallel_group())


class Mega(trainer.Framework):
    """Megatron-core under our own loop."""

    name = "mega"

    def start(self, config: RunConfig) -> None:
        """Start torch.distributed and megatron-core's process groups and random generators."""
        initialize_parallel(config)

    def run(self, job: Job, data: Data, source: WeightSource | None, recorder: StepRecorder, ready: Ready) -> None:
        """Build and train."""
        training = build(job.config, job.spec, source, data.dataset)
        ready(training, data.dataset)
        run(job.config, training, recorder)

    def routers(self, built: Training) -> Any:
        """Return the routers of all layers."""
        return mega_resolved.routers(built.model)

    def facts(self, job: Job, built: Training) -> Facts:
        """Return what was built."""
        return mega_resolved.read(job.config, built.loader, built.model, built.optimizer, built.scheduler)


if __name__ == "__main__":
    sys.exit(trainer.main(Mega()))
