"""Callbacks through which the trainers of other libraries feed the step recorder; the libraries are imported on use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from train.job.recorder import StepRecorder

StepReader = Callable[[], tuple[Any, Any, float]]
"""Function that returns (loss, gradient norm, learning rate) of the step that has just ended."""


def hf_callback(recorder: StepRecorder, read_step: StepReader) -> Any:
    """Return a `BenchmarkCallback` for the Hugging Face Trainer that feeds the recorder."""
    from transformers import TrainerCallback

    class BenchmarkCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loss, grad_norm, learning_rate = read_step()
            recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate)

    return BenchmarkCallback()


def lightning_callback(recorder: StepRecorder, read_step: StepReader) -> Any:
    """Return a `BenchmarkCallback` for Lightning (and so NeMo) that feeds the recorder.

    Lightning's batch is one optimizer step when NeMo's data step holds all its micro batches; with Lightning's own
    accumulation, `global_step` shows which batches end an optimizer step, and the others are skipped.
    """
    from lightning.pytorch import Callback

    class BenchmarkCallback(Callback):
        def __init__(self) -> None:
            self._steps_done = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._steps_done = trainer.global_step
            recorder.start()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == self._steps_done:
                return
            self._steps_done = trainer.global_step
            loss, grad_norm, learning_rate = read_step()
            recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate)

    return BenchmarkCallback()
