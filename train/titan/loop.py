"""torchtitan's Trainer, watched: the recorder gets each step's loss, gradient norm and learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torchtitan.distributed import utils as dist_utils
from torchtitan.train import Trainer

from train.common.weights import WeightSource
from train.job.recorder import StepRecorder
from train.titan import model as titan_model
from train.titan.recipe import Recipe
from utils.models import ModelSpec
from utils.settings.config import RunConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class BenchmarkTrainer(Trainer):
    """The Trainer of torchtitan, with nothing of a step replaced.

    torchtitan's own line of the log would gather the loss over ranks at each step; the recorder averages it at the end.
    """

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.recorder: StepRecorder | None = None
        self._losses: list[torch.Tensor] = []
        self._grad_norm: Any = None

    def batch_generator(self, data_iterable: Iterable[Any]) -> Iterator[Any]:
        """Return torchtitan's iterator over the loader; the wait for each micro batch is timed."""
        assert self.recorder is not None
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
        assert self.recorder is not None
        learning_rate = self.lr_schedulers.schedulers[0].get_last_lr()[0]
        self._losses.clear()
        with _norms_to(self._keep_norm):
            super().train_step(data_iterator)
        loss = torch.stack(self._losses).sum() * (self.parallel_dims.dp_replicate * self.parallel_dims.dp_shard)
        self.recorder.end_step(loss=loss, grad_norm=self._grad_norm, learning_rate=learning_rate)

    def _keep_norm(self, norm: Any) -> None:
        self._grad_norm = norm


@contextmanager
def _norms_to(keep: Callable[[Any], None]) -> Iterator[None]:
    """Hand the gradient norm that torchtitan clips by to `keep`; torchtitan passes it to its log only."""
    original = dist_utils.clip_grad_norm_

    def clip(*arguments: Any, **keywords: Any) -> Any:
        norm = original(*arguments, **keywords)
        keep(norm)
        return norm

    dist_utils.clip_grad_norm_ = clip
    try:
        yield
    finally:
        dist_utils.clip_grad_norm_ = original


def build(config: RunConfig, recipe: Recipe) -> BenchmarkTrainer:
    """Return the trainer with everything built and torchtitan's own weights. torch.distributed must be initialized."""
    training = BenchmarkTrainer(recipe.settings)
    (model,) = training.model_parts
    titan_model.zero_biases(model)
    if config.platform == "cpu":
        from train.titan import cpu as titan_cpu

        titan_cpu.sum_only(model)
    return training


def fill(
    training: BenchmarkTrainer, config: RunConfig, spec: ModelSpec, source: WeightSource | None, recipe: Recipe
) -> None:
    """Replace the weights of a built trainer by those of `source`; None leaves torchtitan's own."""
    if source is None:
        return
    assert recipe.spec.state_dict_adapter is not None
    adapter = recipe.spec.state_dict_adapter(recipe.model_arguments, None)
    (model,) = training.model_parts
    titan_model.fill(model, adapter, spec, source, DTYPES[config.precision])


def run(training: BenchmarkTrainer, recorder: StepRecorder) -> None:
    """Train all steps on this rank and record each; ends with the losses averaged over ranks."""
    training.recorder = recorder
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()  # the peak of the steps, not of the building
    try:
        training.train()
    finally:
        training.close()
    recorder.merge_ranks()
