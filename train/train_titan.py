"""Pretraining with torchtitan: its own trainer, models, FSDP2, optimizer and clipping, on both vendors and a CPU.

Started by torchrun through train/launch.py with the Python that has torchtitan. Samples, order, learning rates and the
weights without weight decay are those of train_mega, given to torchtitan through its Trainer.Config. Reading order:
`Titan.run` -> train/titan/recipe.py -> `BenchmarkTrainer`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from train.titan import cpu as titan_cpu

if not torch.cuda.is_available():  # before the import of torchtitan, which reads the device
    titan_cpu.redirect()

from torchtitan.distributed import utils as dist_utils
from torchtitan.trainer import Trainer

from train.common import trainer
from train.common.built import require_built
from train.common.kernels import DTYPES, Facts, tokens_of_experts
from train.common.trainer import Data, Ready
from train.common.weights import WeightSource
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.titan import recipe, resolved as titan_resolved
from utils.settings.config import RunConfig

MEANINGLESS = (
    "Peak flops undefined",
    "Error running lspci",
    "torch.distributed is already initialized",
    "model.safetensors.index.json not found",
    "initial_load_model_only=True has no effect",
)
"""Beginnings of torchtitan's warnings about figures and settings of its own that are not used here."""


class BenchmarkTrainer(Trainer):
    """The Trainer of torchtitan, with nothing of a step replaced.

    torchtitan's own line of the log would gather the loss over ranks at each step; the recorder averages it at the end.
    """

    def __init__(self, settings: Any, recorder: StepRecorder) -> None:
        super().__init__(settings)
        self.recorder = recorder
        self._losses: list[torch.Tensor] = []

    def batch_generator(self, data_iterable: Iterable[Any]) -> Iterator[Any]:
        """Return torchtitan's iterator over the loader; the wait for each micro batch is timed."""
        batches = self.recorder.timed(data_iterable)
        self.recorder.start()
        return super().batch_generator(batches)

    def forward_backward_step(self, **keywords: Any) -> torch.Tensor:
        """Keep the share of a micro batch in the loss, which torchtitan has divided by the tokens of all ranks."""
        loss = super().forward_backward_step(**keywords)
        self._losses.append(loss.detach())
        return loss

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Run one optimizer step and record it; the loss is the mean over the tokens of this rank."""
        learning_rate = self.lr_schedulers.schedulers[0].get_last_lr()[0]
        self._losses.clear()
        clip_by_norm, norms = dist_utils.clip_grad_norm_, []

        def clip(*arguments: Any, **keywords: Any) -> Any:
            norms.append(clip_by_norm(*arguments, **keywords))
            return norms[-1]

        # torchtitan passes the norm that it clips by to its log only
        with mock.patch.object(dist_utils, "clip_grad_norm_", clip):
            super().train_step(data_iterator)
        loss = torch.stack(self._losses).sum() * (self.parallel_dims.dp_replicate * self.parallel_dims.dp_shard)
        self.recorder.end_step(loss=loss, grad_norm=norms[-1], learning_rate=learning_rate)


class Titan(trainer.Framework):
    """torchtitan's own Trainer."""

    name = "titan"

    def start(self, config: RunConfig) -> None:
        """Start torch.distributed; torchtitan takes what it finds."""
        trainer.silence({"root": MEANINGLESS})
        super().start(config)

    def run(self, job: Job, data: Data, source: WeightSource | None, recorder: StepRecorder, ready: Ready) -> None:
        """Build the trainer with torchtitan's own weights, replace them, and train."""
        config = job.config
        settings, adapter = recipe.make(config, job.spec, data.dataset)
        training = BenchmarkTrainer(settings, recorder)
        (model,) = training.model_parts
        if config.platform == "cpu":
            titan_cpu.sum_only(model)

        def fill(weights: WeightSource) -> None:
            recipe.fill(model, adapter, job.spec, weights, DTYPES[config.precision])

        ready(training, data.dataset, fill)
        try:
            # the time limit of collectives stays: a shorter one would end a rank that waits for a slow disk, and torch
            # 2.13 has no function for it
            with mock.patch.object(dist_utils, "set_pg_timeouts"):
                training.train()
        finally:
            training.close()
        recorder.merge_ranks()

    def routers(self, built: BenchmarkTrainer) -> Any:
        """Return the routers of all layers, whose second result has the numbers of the experts of each token."""
        (model,) = built.model_parts
        routers = [layer.moe.router for layer in model.layers.values()]
        return [(router, functools.partial(tokens_of_experts, router.num_experts, 1)) for router in routers]

    def facts(self, job: Job, built: BenchmarkTrainer) -> Facts:
        """Return what was built."""
        return titan_resolved.read(built, job)

    def check(self, job: Job, built: BenchmarkTrainer, resolved: Mapping[str, Any]) -> None:
        """Raise MismatchError where the model is another, or a setting of the map did not arrive."""
        require_built("torchtitan", titan_resolved.differences(job, resolved))


if __name__ == "__main__":
    sys.exit(trainer.main(Titan()))
