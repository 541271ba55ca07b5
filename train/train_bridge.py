"""Pretraining with Megatron-Bridge: its recipe, set-up, training loop, optimizer and schedule; our data set.

Started by torchrun through train/launch.py with the Python that has Bridge: on NVIDIA that of the NeMo Framework
container, on a CPU that of .venv-bridge. Reading order: `Bridge.run` -> `Benchmark`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

if not torch.cuda.is_available():  # before the import of Bridge, which looks for the device
    from train.bridge import cpu as bridge_cpu

    bridge_cpu.redirect()

from megatron.bridge.data import loaders
from megatron.bridge.training.callbacks import Callback
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.core import num_microbatches_calculator as calculator, parallel_state
from torch.utils.data import DataLoader

from train.bridge import recipe as bridge_recipe
from train.common import trainer
from train.common.built import map_differences, require_built
from train.common.kernels import Facts
from train.common.loading import tie_workers, timed_batches
from train.common.trainer import Data, Ready
from train.common.weights import WeightSource
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.mega import resolved as mega_resolved, weights as mega_weights
from train.mega.model import KNOWN_MESSAGES
from utils.settings.config import RunConfig

LOSS = "lm loss"


@dataclass
class Built:
    """The objects of one rank that Bridge has built, before its first step."""

    recipe: Any
    """Its `ConfigContainer` after validation; only the number of steps is read from it, which no object holds."""
    model: Any
    optimizer: Any
    scheduler: Any
    loader: DataLoader[Any]


class Benchmark(Callback):
    """Our callback in Bridge's loop: checks the built objects before the first step, and records each step."""

    def __init__(self, recorder: StepRecorder, loader: Callable[[], Any], ready: Ready) -> None:
        """`loader` returns the loader of this rank."""
        self._recorder = recorder
        self._loader = loader
        self._ready = ready
        self._learning_rate = math.nan

    def on_train_start(self, context: Any) -> None:
        """Check the built objects, on every rank, before the first step."""
        (model,) = context.model
        loader = self._loader()
        self._ready(Built(context.state.cfg, model, context.optimizer, context.scheduler, loader), loader.dataset)
        self._recorder.start()

    def on_train_step_start(self, context: Any) -> None:
        """Keep the learning rate of the step, which the schedule replaces before the step's end."""
        self._learning_rate = context.optimizer.param_groups[0]["lr"]

    def on_train_step_end(self, context: Any) -> None:
        """Record the step; the loss is the mean over data-parallel ranks, on the last pipeline stage only."""
        self._recorder.end_step(
            loss=context.loss_dict.get(LOSS), grad_norm=context.grad_norm, learning_rate=self._learning_rate
        )

    def on_train_end(self, context: Any) -> None:
        """Merge the ranks while Bridge's process groups exist."""
        self._recorder.merge_ranks(parallel_state.get_data_parallel_group())


class Bridge(trainer.Framework):
    """Megatron-Bridge's recipe and loop."""

    name = "bridge"

    def start(self, config: RunConfig) -> None:
        """Start torch.distributed in Bridge's place, so that it lives until the result is written."""
        trainer.silence(KNOWN_MESSAGES)
        super().start(config)

    def run(self, job: Job, data: Data, source: WeightSource | None, recorder: StepRecorder, ready: Ready) -> None:
        """Build and train by Bridge's own function."""
        timed, build, kept = timed_batches(recorder), loaders.build_pretraining_data_loader, []

        def build_and_keep(*arguments: Any, **named: Any) -> Any:
            loader = build(*arguments, **named)
            if loader is not None:
                # Bridge starts the workers itself, and they would outlive a rank that is killed
                tie_workers(loader)
                kept.append(loader)
            return loader

        def fill(chunks: list[Any]) -> list[Any]:
            (model,) = chunks
            if source is not None:
                mega_weights.fill(model, job.spec, source)
            return chunks

        def timed_step(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
            return forward_step(state, timed(data_iterator), model, return_schedule_plan)

        recipe = bridge_recipe.make(job.config, job.spec, lambda: data.dataset)
        recipe.model.register_pre_wrap_hook(fill)  # before DDP and the optimizer, which copies the weights
        with mock.patch.object(loaders, "build_pretraining_data_loader", build_and_keep):
            pretrain(recipe, timed_step, callbacks=[Benchmark(recorder, lambda: kept[0], ready)])

    def routers(self, built: Built) -> Any:
        """Return the routers of all layers."""
        return mega_resolved.routers(built.model)

    def facts(self, job: Job, built: Built) -> Facts:
        """Return what was built."""
        schedule = built.scheduler
        rates = schedule.max_lr, schedule.min_lr, _steps(schedule.lr_warmup_steps)
        batch = mega_resolved.calculated_batch(built.recipe.train.train_iters, built.loader)
        return batch | mega_resolved.built_facts(built.model, built.optimizer, *rates)

    def check(self, job: Job, built: Built, resolved: Mapping[str, Any]) -> None:
        """Raise MismatchError where the model is another, or a setting of the map did not arrive."""
        super().check(job, built, resolved)
        wrong = [text for _, text in map_differences("bridge", job, resolved)]
        require_built("Megatron-Bridge", wrong or unread_differences(built))


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


if __name__ == "__main__":
    sys.exit(trainer.main(Bridge()))
