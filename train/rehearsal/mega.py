"""One rank of mega: the build and run functions of train/train_mega.py on tensors without data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from train.rehearsal.steps import Samples, Steps, micro_batch
from utils.models import ModelSpec
from utils.settings.config import RunConfig


def train(
    config: RunConfig,
    spec: ModelSpec,
    steps: Steps,
    initialize: Callable[[RunConfig], None],
    build: Callable[..., Any],
    run: Callable[..., None],
) -> None:
    """Build the objects of this rank and train all steps; weights are those of megatron-core, batches have no data."""
    initialize(config)
    training = build(config, spec, None, Samples(config))
    training.loader = (micro_batch(config) for _ in itertools.count())
    training.optimizer.step = steps.in_optimizer(training.optimizer.step)
    steps.watch(training.model)
    run(config, training, steps)
