"""Pretraining with Megatron-Bridge: its recipe, set-up, training loop, optimizer and schedule; our data set.

Started by torchrun through train/launch.py with the Python that has Bridge: on NVIDIA that of the NeMo Framework
container, on a CPU that of .venv-bridge. Reading order: `main` -> `train` -> `run` -> `Benchmark`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():  # before the import of Bridge, which looks for the device
    from train.bridge import cpu as bridge_cpu

    bridge_cpu.redirect()

from megatron.bridge.data import loaders
from megatron.bridge.training.callbacks import Callback
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.core import parallel_state

from train.bridge import recipe as bridge_recipe
from train.bridge import resolved as bridge_resolved
from train.bridge.resolved import Built
from train.common import trainer
from train.common.loading import tie_workers
from train.common.weights import EqualWeights, WeightSource, combined_digest
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.job.report import JobReport
from train.mega import weights as mega_weights
from train.mega.releases import silence_known_messages
from utils.dataset.gpt_dataset import build_train_dataset
from utils.models import ModelSpec
from utils.settings.config import RunConfig

BuiltFunction = Callable[[Built], None]
"""Called with what Bridge has built, before the first step."""
LOSS = "lm loss"


class Benchmark(Callback):
    """Our callback in Bridge's loop: checks the built objects before the first step, and records each step."""

    def __init__(self, recorder: StepRecorder, loader: Callable[[], Any], ready: BuiltFunction) -> None:
        """`loader` returns the loader of this rank; `ready` raises where the built objects differ from the settings."""
        self._recorder = recorder
        self._loader = loader
        self._ready = ready
        self._learning_rate = math.nan

    def on_train_start(self, context: Any) -> None:
        """Check the built objects, on every rank, before the first step."""
        (model,) = context.model
        self._ready(Built(context.state.cfg, model, context.optimizer, context.scheduler, self._loader()))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # the peak of the steps, not of the building
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


class TimedStep:
    """Bridge's forward step with its samples taken from the recorder's clock."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._taken: Any = None
        self._timed: Iterator[Any] = iter(())

    def __call__(self, state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
        """Return the output of the model for the next micro batch and its loss function."""
        if data_iterator is not self._taken:
            self._taken, self._timed = data_iterator, self._recorder.timed(_items(data_iterator))
        return forward_step(state, self._timed, model, return_schedule_plan)


def _items(iterator: Any) -> Iterable[Any]:
    """Yield the micro batches of Bridge's data iterator, which has `__next__` alone."""
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield batch


@contextmanager
def _kept_loader() -> Iterator[list[Any]]:
    """Yield a list that gets the loader that Bridge builds, its workers tied to this rank."""
    build, kept = loaders.build_pretraining_data_loader, []

    def build_and_keep(*arguments: Any, **named: Any) -> Any:
        loader = build(*arguments, **named)
        if loader is not None:
            tie_workers(loader)
            kept.append(loader)
        return loader

    loaders.build_pretraining_data_loader = build_and_keep
    try:
        yield kept
    finally:
        loaders.build_pretraining_data_loader = build


def run(
    config: RunConfig,
    spec: ModelSpec,
    source: WeightSource | None,
    build_dataset: Callable[[], Any],
    recorder: StepRecorder,
    ready: BuiltFunction,
) -> None:
    """Train all steps on this rank and record each; weights from `source`, or megatron-core's own if None.

    torch.distributed must be initialized; `ready` is that of `Benchmark`.
    """

    def fill(chunks: list[Any]) -> list[Any]:
        (model,) = chunks
        if source is not None:
            mega_weights.fill(model, spec, source)
        return chunks

    recipe = bridge_recipe.make(config, spec, build_dataset)
    recipe.model.register_pre_wrap_hook(fill)  # before DDP and the optimizer, which copies the weights
    with _kept_loader() as kept:
        pretrain(recipe, TimedStep(recorder), callbacks=[Benchmark(recorder, lambda: kept[0], ready)])


def train(job: Job, report: JobReport, prefix: Path, manifest: dict[str, Any]) -> None:
    """Train the job and fill in its report."""
    config = job.config
    source = EqualWeights(job.spec, config.seed, config.init_std) if config.init == "equal" else None
    report.recorder = trainer.recorder(job, is_reporter(config))

    def ready(built: Built) -> None:
        report.resolved = bridge_resolved.read(built)
        report.resolved["init"] = "native" if source is None else "equal"
        report.check_resolved()
        trainer.check_model(job.spec, report.resolved)
        bridge_resolved.check(config, job.spec, report.resolved)
        bridge_resolved.check_unread(built)
        digest = None if source is None else combined_digest(source.digests)
        report.fingerprint = trainer.fingerprint(job, prefix, manifest, built.loader.dataset, digest)
        trainer.print_start(job, report)

    run(config, job.spec, source, lambda: build_train_dataset(config, prefix, manifest), report.recorder, ready)
    trainer.print_end(job, report)


def is_reporter(config: RunConfig) -> bool:
    """Return whether this rank has the loss and writes the result: last pipeline stage, first of all other groups.

    Bridge has not made its groups yet when this is called; megatron-core numbers the stages outermost (tp-cp-ep-dp-pp).
    """
    stages = config.pipeline_parallel_size
    return int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) // stages * (stages - 1)


def start_processes(config: RunConfig) -> None:
    """Start torch.distributed in Bridge's place, so that it lives until the result is written."""
    silence_known_messages()
    torch.distributed.init_process_group("gloo" if config.platform == "cpu" else "nccl")


def main() -> int:
    """Run one job as one rank of torchrun."""
    loaded: list[RunConfig] = []

    def initialize(config: RunConfig) -> None:
        loaded.append(config)
        start_processes(config)

    return trainer.main("bridge", initialize, lambda: is_reporter(loaded[0]), train)


if __name__ == "__main__":
    sys.exit(main())
