"""Pretraining with NeMo: its recipe, Lightning loop, Megatron strategy, optimizer, schedule and data module.

Started by torchrun through train/launch.py with the Python that has NeMo: on NVIDIA that of the NeMo container, on a
CPU that of .venv-nemo. Reading order: `Nemo.run` -> train/nemo/recipe.py -> `Benchmark`.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():  # before the import of NeMo, which reads the device
    from train.mega.cpu import redirect_nemo

    redirect_nemo()

import fiddle
from lightning.pytorch import Callback
from megatron.core import optimizer as megatron_optimizer, parallel_state

from train.common import trainer
from train.common.built import map_differences, require_built
from train.common.kernels import Facts
from train.common.loading import timed_batches
from train.common.trainer import Data, Ready
from train.common.weights import WeightSource
from train.job.job import Job
from train.job.recorder import StepRecorder
from train.mega import resolved as mega_resolved, weights as mega_weights
from train.mega.optimizer import accept_conditions
from train.nemo import recipe as nemo_recipe
from utils.dataset.gpt_dataset import EncodedTokenizer
from utils.settings.config import RunConfig


class Benchmark(Callback):
    """Our callback in NeMo's loop: tells when all is built, and reads each step.

    NeMo copies its callbacks, so this one holds functions and no recorder. A batch of Lightning is one optimizer step,
    because NeMo's data step takes all its micro batches.
    """

    def __init__(self, when_built: Callable[[Any], None], record: Callable[..., None]) -> None:
        """`when_built` is called with Lightning's trainer, on every rank, before the first step."""
        self._when_built, self._record = when_built, record
        self._learning_rate = math.nan

    def on_train_start(self, training: Any, module: Any) -> None:
        """Tell that all is built."""
        self._when_built(training)

    def on_train_batch_start(self, training: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Keep the learning rate of the step, which Lightning replaces before it reports the end of the step."""
        self._learning_rate = training.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, training: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the step; the loss is the mean over data-parallel ranks, on the last pipeline stage only."""
        metrics = training.callback_metrics
        loss = metrics["reduced_train_loss"] if parallel_state.is_pipeline_last_stage() else None
        self._record(loss=loss, grad_norm=metrics["grad_norm"], learning_rate=self._learning_rate)


class Nemo(trainer.Framework):
    """NeMo's recipe under Lightning."""

    name = "nemo"

    def start(self, config: RunConfig) -> None:
        """Do nothing: NeMo starts torch.distributed itself."""

    def run(self, job: Job, data: Data, source: WeightSource | None, recorder: StepRecorder, ready: Ready) -> None:
        """Build and train by NeMo's own function; NeMo makes the data set."""
        config, spec, timed = job.config, job.spec, timed_batches(recorder)

        def when_built(training: Any) -> None:
            def fill(weights: WeightSource) -> None:
                mega_weights.fill(mega_resolved.gpt_of(ddp_of(training)), spec, weights)
                training.optimizers[0].reload_model_params()  # the optimizer has float32 copies of its own

            ready(training, training.train_dataloader.dataset, fill)
            settings = training.lightning_module.config
            data_step = settings.data_step_fn
            settings.data_step_fn = lambda batches: data_step(timed(batches))
            recorder.start()

        nemo_recipe.set_weight_seed(config.seed)
        accept_conditions(megatron_optimizer)
        callbacks = [Benchmark(when_built, lambda **read: recorder.end_step(**read))]
        vocabulary = EncodedTokenizer(data.manifest)
        if vocabulary.vocab_size is None:  # all that NeMo needs: from it it counts the padding tokens
            vocabulary.vocab_size = spec.vocab_size
        with tempfile.TemporaryDirectory(prefix="tprimat_nemo_") as log_dir:
            fiddle.build(nemo_recipe.make(config, spec, vocabulary, callbacks, Path(log_dir)))()
        recorder.merge_ranks(parallel_state.get_data_parallel_group())

    def facts(self, job: Job, built: Any) -> Facts:
        """Return what Lightning's trainer has before its first step."""
        model = ddp_of(built)
        (schedule,) = (entry.scheduler for entry in built.lr_scheduler_configs)
        rates = schedule.base_lrs[0], schedule.min_lr, schedule.warmup_steps
        batch = mega_resolved.calculated_batch(built.max_steps, built.train_dataloader)
        return batch | mega_resolved.built_facts(model, built.optimizers[0].mcore_optimizer, *rates)

    def check(self, job: Job, built: Any, resolved: Mapping[str, Any]) -> None:
        """Raise MismatchError where a setting of the map did not arrive, so that NeMo's default applies instead."""
        require_built("NeMo", [text for _, text in map_differences("nemo", job, resolved)])


def ddp_of(training: Any) -> Any:
    """Return megatron-core's DistributedDataParallel of this rank, which holds the GPTModel."""
    (module,) = training.strategy.megatron_parallel
    return module.module


if __name__ == "__main__":
    sys.exit(trainer.main(Nemo()))
