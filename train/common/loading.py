"""Loading of samples during training: number of workers, prefetching, pinned memory. The same in every framework.

On a GPU, two worker processes per rank fetch ahead. A thread of the rank copies their samples into pinned memory, from
which they go to the device asynchronously. On a CPU the rank fetches its samples itself: a worker would take cores from
the training, for samples that cost a thousandth of a step (docs/hardware.md).

The workers are forked, torch's way on Linux. That is safe after CUDA and NCCL have started because they never call
either, and torch gives each one a single thread; the memory maps of the data set are shared.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from train.job.processes import end_with_parent
from train.job.recorder import StepRecorder
from utils.settings.config import RunConfig

GPU_WORKERS = 2
"""Default of Megatron-LM (`--num-workers`): one would keep up, the second covers a late fetch."""
CPU_WORKERS = 0
_END = object()


def loader_arguments(config: RunConfig) -> dict[str, Any]:
    """Return arguments of torch's DataLoader; the transformers Trainer takes them with the prefix `dataloader_`."""
    is_gpu = config.platform != "cpu"
    workers = GPU_WORKERS if is_gpu else CPU_WORKERS
    # the Trainer takes all micro batches of a step at its start, and accelerate one more
    ahead = config.gradient_accumulation + 1
    return {
        "num_workers": workers,
        "prefetch_factor": math.ceil(ahead / workers) if workers else None,
        # otherwise the loader stops its workers, and waits for them, inside the last step
        "persistent_workers": workers > 0,
        "pin_memory": is_gpu,
    }


class LabelledSamples(Dataset[Any]):
    """GPTDataset's samples in the form of a framework, made of tokens and labels. A masked token gets label -100."""

    def __init__(self, dataset: Any, count: int, form: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        self.settings = dataset.config
        """GPTDataset's own configuration, for what is read back from the data."""
        self._dataset, self._count, self._form = dataset, count, form

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        sample = self._dataset[index]
        return self._form(sample["tokens"], torch.where(sample["loss_mask"] > 0, sample["labels"], -100))


def micro_batches(config: RunConfig, data_parallel_rank: int) -> Iterator[list[int]]:
    """Yield the sample numbers of every micro batch of one data-parallel rank, in Megatron's order.

    Micro batch m of a step starts at sample (m * DP + rank) * MBS of the step.
    """
    stride = config.micro_batch_size * config.data_parallel_size
    for start in range(data_parallel_rank * config.micro_batch_size, config.training_samples, stride):
        yield list(range(start, start + config.micro_batch_size))


def loader_of_rank(config: RunConfig, dataset: Any, rank: int) -> DataLoader[Any]:
    """Return the micro batches of a data-parallel rank in Megatron's order."""
    # a list, which can be read back before the training takes it
    order = list(micro_batches(config, rank))
    loader = DataLoader(dataset, batch_sampler=order, **loader_arguments(config))
    tie_workers(loader)
    return loader


def tie_workers(loader: DataLoader[Any]) -> None:
    """Make the kernel kill the loader's workers when this rank dies. Call it before iterating the loader.

    torch's own check of the parent misses a death during the worker's start; the worker then waits forever.
    """
    rank, initialize = os.getpid(), loader.worker_init_fn

    def start(worker: int) -> None:
        end_with_parent(signal.SIGKILL, rank)
        if initialize is not None:
            initialize(worker)

    loader.worker_init_fn = start


def timed_batches(recorder: StepRecorder) -> Callable[[Any], Iterator[Any]]:
    """Return a function that gives the iterator of a framework in the form that the recorder times.

    A framework hands the same iterator to each micro batch, and as long as it is the same, so is the result.
    """

    @lru_cache(maxsize=1)
    def timed(batches: Any) -> Iterator[Any]:
        return recorder.timed(iter(partial(next, batches, _END), _END))  # batches may have `__next__` alone

    return timed
