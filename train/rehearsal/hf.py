"""One rank of hf: the build and run functions of train/train_hf.py, through the Trainer, on tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from train.rehearsal.steps import STEPS, Samples, Steps, micro_batch
from utils.models import ModelSpec
from utils.settings.config import RunConfig


def train(
    config: RunConfig, spec: ModelSpec, steps: Steps, build: Callable[..., Any], run: Callable[..., None]
) -> None:
    """Build the Trainer of this rank and train all steps; weights are those of transformers, batches have no data."""
    _take_attention_without_mask()
    training = build(config, spec, None, Samples(config))
    count = STEPS * config.gradient_accumulation
    training.get_train_dataloader = lambda: [_labelled(micro_batch(config)) for _ in range(count)]
    training._clip_grad_norm = steps.in_optimizer(training._clip_grad_norm)
    steps.watch(training.model)
    run(training, steps)


def _labelled(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"input_ids": batch["tokens"], "labels": batch["labels"], "shift_labels": batch["labels"]}


def _take_attention_without_mask() -> None:
    """Let transformers take fake tensors for real ones; of traced ones it makes a mask in full."""
    from transformers import masking_utils

    masking_utils.is_tracing = lambda tensor=None: False
