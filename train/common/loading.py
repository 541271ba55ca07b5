"""How samples get to a rank while it trains: who fetches them and how far ahead. The same in every framework.

On a GPU, two processes a rank fetch ahead, and a thread of the rank moves what they have into pinned memory, from where
it is copied to the device without waiting. On a CPU the rank fetches for itself: a process beside it would take the
cores that train, for samples that cost a thousandth of a step (docs/performance.md).

The workers are forked, torch's way on Linux. That is safe after CUDA and NCCL have started because they never call
either, and torch gives each one a single thread; the memory maps of the data set are shared.
"""

from __future__ import annotations

import math
import os
import signal
from typing import Any

from torch.utils.data import DataLoader

from train.job.processes import end_with_parent
from utils.settings.config import RunConfig

GPU_WORKERS = 2
"""As Megatron-LM has it (`--num-workers`): one would keep up, the second covers a fetch that is late."""
CPU_WORKERS = 0


def loader_arguments(config: RunConfig) -> dict[str, Any]:
    """Return arguments of torch's DataLoader; the transformers Trainer has them with `dataloader_` before each name."""
    is_gpu = config.platform != "cpu"
    workers = GPU_WORKERS if is_gpu else CPU_WORKERS
    # the Trainer takes a whole step's micro batches at its start, and accelerate one more
    ahead = config.gradient_accumulation + 1
    return {
        "num_workers": workers,
        "prefetch_factor": math.ceil(ahead / workers) if workers else None,
        # without it the loader ends its workers, and waits for them, inside the last step
        "persistent_workers": workers > 0,
        "pin_memory": is_gpu,
    }


def tie_workers(loader: DataLoader[Any]) -> None:
    """Have the kernel end the loader's workers when this rank dies. Call it before the loader is iterated.

    torch's own watch over the rank misses a death while the worker starts, and the worker then waits for ever.
    """
    rank, initialize = os.getpid(), loader.worker_init_fn

    def start(worker: int) -> None:
        end_with_parent(signal.SIGKILL, rank)
        if initialize is not None:
            initialize(worker)

    loader.worker_init_fn = start
