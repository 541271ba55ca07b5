"""Everything that a rehearsal changes in torch before a framework is imported, in the order in which it must happen."""

from __future__ import annotations

import torch

from train.rehearsal import device, kernels, ranks
from train.rehearsal.ledger import Ledger
from train.rehearsal.steps import Steps
from utils.models import ModelSpec
from utils.settings.config import RunConfig


def prepare(config: RunConfig, spec: ModelSpec, rank: int, memory_gb: float) -> tuple[Ledger, Steps]:
    """Make this process the rank of a job, on a stand-in with `memory_gb` (1e9 bytes); return ledger and steps."""
    torch.manual_seed(config.seed)
    has_device = config.platform != "cpu"
    vocabulary = spec.vocab_size // config.tensor_parallel_size
    tokens = config.micro_batch_size * config.sequence_length // config.context_parallel_size
    place = device.CUDA if has_device else torch.device("cpu")
    ledger = Ledger(place, logits=(tokens * vocabulary, vocabulary))
    ranks.lend(rank, config.num_gpus, ledger)
    if has_device:
        device.lend(config.platform, config.ranks_per_node, memory_gb)
        kernels.lend_kernels(ledger)
    device.lend_data(ledger)
    kernels.lend_regions(ledger)
    return ledger, Steps(ledger, has_pipeline=config.pipeline_parallel_size > 1)
