"""Pretraining with NeMo: its recipe, Lightning loop, Megatron strategy, optimizer, schedule and data module.

Started by torchrun through train/launch.py with the Python that has NeMo: on NVIDIA that of the NeMo container, on a
CPU that of .venv-nemo. Reading order: `main` -> `train` -> `Benchmark.on_train_start`.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():  # before the import of NeMo, which reads the device
    from train.nemo import cpu as nemo_cpu

    nemo_cpu.redirect()

import fiddle
from lightning.pytorch import Callback
from megatron.core import optimizer as megatron_optimizer
from megatron.core import parallel_state

from train.common import trainer
from train.common.weights import EqualWeights, WeightSource, combined_digest
from train.job.callbacks import lightning_callback
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.job.report import JobReport
from train.mega import weights as mega_weights
from train.mega.resolved import gpt_of
from train.nemo import optimizer as nemo_optimizer
from train.nemo import recipe as nemo_recipe
from train.nemo import resolved as nemo_resolved
from utils.dataset.gpt_dataset import EncodedTokenizer
from utils.models import ModelSpec
from utils.settings.config import RunConfig

TrainerFunction = Callable[[Any], None]
"""Called with Lightning's trainer after everything is built, before the first step."""


class Benchmark(Callback):
    """Our callback in NeMo's loop: checks the built objects, fills in the weights, reads each step for the recorder."""

    def __init__(
        self, spec: ModelSpec, source: WeightSource | None, check: TrainerFunction, ready: TrainerFunction
    ) -> None:
        """`check` raises where the built objects differ from the settings; `ready` is called after the weights."""
        self._spec = spec
        self._source = source
        self._check = check
        self._ready = ready
        self._learning_rate = math.nan
        self._training: Any = None

    def on_train_start(self, training: Any, module: Any) -> None:
        """Check the built objects and fill in the weights, on every rank, before the first step."""
        self._training = training
        self._check(training)
        if self._source is not None:
            mega_weights.fill(gpt_of(nemo_resolved.ddp_of(training)), self._spec, self._source)
            training.optimizers[0].reload_model_params()  # the optimizer has float32 copies of its own
        self._ready(training)

    def on_train_batch_start(self, training: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Keep the learning rate of the step, which Lightning replaces before it reports the end of the step."""
        self._learning_rate = training.optimizers[0].param_groups[0]["lr"]

    def read_step(self) -> tuple[Any, Any, float]:
        """Return loss (mean over data-parallel ranks), gradient norm and learning rate of the step that has ended."""
        metrics = self._training.callback_metrics
        loss = metrics["reduced_train_loss"] if parallel_state.is_pipeline_last_stage() else None
        return loss, metrics["grad_norm"], self._learning_rate


class TimedDataStep:
    """A model's `data_step_fn` in which the recorder times the wait for micro batches."""

    def __init__(self, data_step: Callable[[Iterator[Any]], Any], recorder: StepRecorder) -> None:
        self._data_step = data_step
        self._recorder = recorder
        self._taken: Iterator[Any] | None = None
        self._timed: Iterator[Any] = iter(())

    def __call__(self, batches: Iterator[Any]) -> Any:
        """Return the next micro batch, on its device."""
        if batches is not self._taken:
            self._taken, self._timed = batches, self._recorder.timed(batches)
        return self._data_step(self._timed)


def run(
    config: RunConfig,
    spec: ModelSpec,
    source: WeightSource | None,
    vocabulary: EncodedTokenizer,
    recorder: StepRecorder,
    check: TrainerFunction,
    ready: TrainerFunction = lambda training: None,
) -> None:
    """Train all steps on this rank and record each; ends with the losses averaged over ranks.

    `check` and `ready` are those of `Benchmark`.
    """

    def timed(training: Any) -> None:
        settings = training.lightning_module.config
        settings.data_step_fn = TimedDataStep(settings.data_step_fn, recorder)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # the peak of the steps, not of the building
        ready(training)

    nemo_recipe.set_weight_seed(config.seed)
    nemo_optimizer.accept_conditions(megatron_optimizer)
    benchmark = Benchmark(spec, source, check, timed)
    callbacks = [benchmark, lightning_callback(recorder, benchmark.read_step)]
    with tempfile.TemporaryDirectory(prefix="tprimat_nemo_") as log_dir:
        fiddle.build(nemo_recipe.make(config, spec, vocabulary, callbacks, Path(log_dir)))()
    recorder.merge_ranks(parallel_state.get_data_parallel_group())


def train(job: Job, report: JobReport, prefix: Path, manifest: dict[str, Any]) -> None:
    """Train the job and fill in its report."""
    config = job.config
    source = EqualWeights(job.spec, config.seed, config.init_std) if config.init == "equal" else None
    report.recorder = trainer.recorder(job, is_reporter(config))

    def check(training: Any) -> None:
        report.resolved = nemo_resolved.read(training)
        report.resolved["init"] = "native" if source is None else "equal"
        report.check_resolved()
        nemo_resolved.check(config, job.spec, report.resolved)

    def ready(training: Any) -> None:
        digest = None if source is None else combined_digest(source.digests)
        dataset = training.train_dataloader.dataset
        report.fingerprint = trainer.fingerprint(job, prefix, manifest, dataset, digest)
        trainer.print_start(job, report)

    run(config, job.spec, source, tokenizer(manifest, job.spec), report.recorder, check, ready)
    trainer.print_end(job, report)


def tokenizer(manifest: dict[str, Any], spec: ModelSpec) -> EncodedTokenizer:
    """Return NeMo's tokenizer: it needs only a vocabulary size, from which NeMo counts the padding tokens."""
    vocabulary = EncodedTokenizer(manifest)
    if vocabulary.vocab_size is None:
        vocabulary.vocab_size = spec.vocab_size
    return vocabulary


def is_reporter(config: RunConfig) -> bool:
    """Return whether this rank has the loss and writes the result: last pipeline stage, first of all other groups.

    NeMo has not made its groups yet when this is called; megatron-core numbers the stages outermost (tp-cp-ep-dp-pp).
    """
    stages = config.pipeline_parallel_size
    return int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) // stages * (stages - 1)


def main() -> int:
    """Run one job as one rank of torchrun."""
    loaded: list[RunConfig] = []  # NeMo starts torch.distributed itself
    return trainer.main("nemo", loaded.append, lambda: is_reporter(loaded[0]), train)


if __name__ == "__main__":
    sys.exit(main())
