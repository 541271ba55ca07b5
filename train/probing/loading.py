"""Samples a second of a job's own data loader: GPTDataset, order, workers and pinned memory as in training."""

from __future__ import annotations

import itertools
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from train.common.loading import loader_arguments, tie_workers
from utils.dataset.gpt_dataset import build_train_dataset, micro_batches
from utils.dataset.indexed import load_manifest
from utils.dataset.paths import bin_path, manifest_path
from utils.dataset.place import data_prefix
from utils.errors import DataError
from utils.settings.config import RunConfig

MOST_BATCHES = 20_000


class LoaderError(RuntimeError):
    """The loader cannot be measured; the message is the reason."""


def samples_per_second(config: RunConfig, model: str, seconds: float) -> float:
    """Return the samples that one rank gets a second while it does nothing else; raise LoaderError."""
    try:
        prefix = data_prefix(config, model)
        if not bin_path(prefix).exists():
            raise LoaderError("the data of the job are not prepared; prepare them: ./tprimat data")
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # megatron-core, about libraries that it does not need for data
            return _rate(config, prefix, Path(folder), seconds)
    except (DataError, OSError, RuntimeError, ImportError) as error:
        raise error if isinstance(error, LoaderError) else LoaderError(str(error).splitlines()[0][:200]) from error


def _rate(config: RunConfig, prefix: Path, folder: Path, seconds: float) -> float:
    indexed = replace(config, data_dir=folder)  # the index of the samples is written there
    # of a pair without a manifest the data set needs a digest only, which names its index
    manifest = load_manifest(prefix) if manifest_path(prefix).exists() else {"bin_sha256": "not computed"}
    dataset = build_train_dataset(indexed, prefix, manifest)
    order = list(itertools.islice(micro_batches(config, 0), MOST_BATCHES))
    loader: DataLoader[dict[str, torch.Tensor]] = DataLoader(dataset, batch_sampler=order, **loader_arguments(config))
    tie_workers(loader)
    batches, count = iter(loader), 0
    for _ in range(max(1, config.gradient_accumulation)):  # workers start, and have fetched ahead
        next(batches, None)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = next(batches, None)
        if batch is None:
            break
        count += len(batch["tokens"])
    taken = time.perf_counter() - start
    if not count:
        raise LoaderError("the training has too few samples for a measurement; raise TRAIN_ITERS")
    return count / taken
