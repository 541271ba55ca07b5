"""Pretraining with torchtitan: its own trainer, models, FSDP2, optimizer and clipping, on both vendors and a CPU.

Started by torchrun through train/launch.py with the Python that has torchtitan. Samples, order, learning rates and the
weights without weight decay are those of train_mega, given to torchtitan through its TrainSpec. Reading order: `main`
-> `train` -> train/titan/recipe.py -> train/titan/loop.py.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():  # before the import of torchtitan, which reads the device
    from train.titan import cpu as titan_cpu

    titan_cpu.redirect()

from train.common import trainer
from train.common.weights import EqualWeights, combined_digest
from train.job.job import Job
from train.job.report import JobReport
from train.titan import loop, recipe
from train.titan import resolved as titan_resolved
from utils.dataset.gpt_dataset import build_train_dataset
from utils.settings.config import RunConfig

MEANINGLESS = (
    *("Peak flops undefined", "Error running lspci", "torch.distributed is already initialized"),
    "model.safetensors.index.json not found",
)
"""Beginnings of torchtitan's warnings about figures and settings of its own that are not used here."""


def train(job: Job, report: JobReport, prefix: Path, manifest: dict[str, Any]) -> None:
    """Train the job and fill in its report."""
    config = job.config
    source = EqualWeights(job.spec, config.seed, config.init_std) if config.init == "equal" else None
    dataset = build_train_dataset(config, prefix, manifest)
    made = recipe.make(config, job.spec, dataset)
    training = loop.build(config, made)
    report.resolved = titan_resolved.read(training, job.spec, source)
    report.check_resolved()
    titan_resolved.check(config, job.spec, report.resolved)
    loop.fill(training, config, job.spec, source, made)
    digest = None if source is None else combined_digest(source.digests)
    report.fingerprint = trainer.fingerprint(job, prefix, manifest, dataset, digest)
    report.recorder = trainer.recorder(job, is_reporter())
    trainer.print_start(job, report)
    loop.run(training, report.recorder)
    trainer.print_end(job, report)


def initialize(config: RunConfig) -> None:
    """Start torch.distributed, as for every framework here; torchtitan takes what it finds."""
    logging.getLogger().addFilter(lambda record: not record.getMessage().startswith(MEANINGLESS))
    torch.distributed.init_process_group("gloo" if config.platform == "cpu" else "nccl")


def is_reporter() -> bool:
    """Return whether this is the rank that prints and writes the result."""
    return torch.distributed.get_rank() == 0


def main() -> int:
    """Run one job as one rank of torchrun."""
    return trainer.main("titan", initialize, is_reporter, train)


if __name__ == "__main__":
    sys.exit(main())
