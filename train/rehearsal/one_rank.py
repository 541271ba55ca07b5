"""One rank of a rehearsal: what changes in torch before a framework is imported, its training, the origin of a failure.

The other ranks have a stand-in: collectives have sizes and groups, but nobody answers. A training consists of the build
and run functions of train/train_mega.py or train/train_hf.py on tensors without data.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    MetadataMismatchError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_init, _fully_shard

from train.rehearsal import device
from train.rehearsal.device import StandInError
from train.rehearsal.ledger import Ledger, replace
from train.rehearsal.steps import STEPS, Steps, micro_batch, samples
from utils.errors import ConfigError, causes
from utils.models import ModelSpec
from utils.settings.config import RunConfig

LOCAL = {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
OF_FAKE_TENSORS = (
    *(DataDependentOutputException, DynamicOutputShapeException, MetadataMismatchError),
    *(UnsupportedFakeTensorException, UnsupportedOperatorException),
)
SIGNS = (
    "data is not allocated yet",  # C++ reads a tensor without data
    "Cannot access data pointer",
    "Cannot access accelerator device",
    "Torch not compiled with CUDA",
    "not compiled with CUDA",
    "FakeTensor",
    "fake_tensor",
    "Couldn't swap",
    "has no attribute '_cuda",
    "'SimpleNamespace' object has no attribute",  # a property of the device
    "'Queue' object has no attribute",
)
"""Parts of messages that only a tensor without data or a lent device can cause."""


def prepare(config: RunConfig, spec: ModelSpec, rank: int, memory_gb: float) -> tuple[Ledger, Steps]:
    """Make this process the rank of a job, on a stand-in with `memory_gb` (1e9 bytes); return ledger and steps."""
    torch.manual_seed(config.seed)
    has_device = config.platform != "cpu"
    vocabulary = spec.vocab_size // config.tensor_parallel_size
    tokens = config.micro_batch_size * config.sequence_length // config.context_parallel_size
    place = device.CUDA if has_device else torch.device("cpu")
    ledger = Ledger(place, logits=(tokens * vocabulary, vocabulary))
    lend_ranks(rank, config.num_gpus, ledger)
    if has_device:
        device.lend(config.platform, config.ranks_per_node, memory_gb)
        device.lend_kernels(ledger)
    device.lend_data(ledger)
    device.lend_regions(ledger)
    return ledger, Steps(ledger, has_pipeline=config.pipeline_parallel_size > 1)


def lend_ranks(rank: int, ranks: int, ledger: Ledger) -> None:
    """Start torch.distributed with the backend `fake` as `rank` of `ranks`, and make every further group fake too."""
    from torch.distributed._tools import fake_collectives  # noqa: F401 - registers collectives of fake tensors
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ |= LOCAL | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    make = dist.new_group

    def new_group(*args: Any, **keywords: Any) -> Any:
        return make(*args, **{**keywords, "backend": "fake"})

    def all_gather_object(found: list[Any], mine: Any, group: Any = None) -> None:
        found[:] = [mine] * len(found)

    for module in (dist, dist.distributed_c10d):
        replace(module, new_group=new_group, all_gather_object=all_gather_object, barrier=lambda *_, **__: None)
    replace(DeviceMesh, __init__=_with_data(DeviceMesh.__init__))
    init_device_mesh = _with_data(device_mesh.init_device_mesh)
    for module in (dist, device_mesh, _fsdp_init):
        replace(module, init_device_mesh=init_device_mesh)
    # it makes a device of a name and the current device, which here is a device already
    replace(_fully_shard, _get_device_from_mesh=lambda mesh: ledger.device)


def _with_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose tensors have data: torch reads the ranks of a mesh from one."""

    def real(*args: Any, **keywords: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **keywords)

    return real


def train_mega(
    config: RunConfig,
    spec: ModelSpec,
    steps: Steps,
    initialize: Callable[[RunConfig], None],
    build: Callable[..., Any],
    run: Callable[..., None],
) -> None:
    """Build the objects of this rank and train all steps; weights are those of megatron-core, batches have no data."""
    initialize(config)
    training = build(config, spec, None, samples(config))
    training.loader = (micro_batch(config) for _ in itertools.count())
    training.optimizer.step = steps.in_optimizer(training.optimizer.step)
    steps.watch(training.model)
    run(config, training, steps)


def train_hf(
    config: RunConfig, spec: ModelSpec, steps: Steps, build: Callable[..., Any], run: Callable[..., None]
) -> None:
    """Build the Trainer of this rank and train all steps; weights are those of transformers, batches have no data."""
    from transformers import masking_utils

    masking_utils.is_tracing = lambda tensor=None: False  # of tensors that are traced it makes a mask in full
    training = build(config, spec, None, samples(config))
    count = STEPS * config.gradient_accumulation
    training.get_train_dataloader = lambda: [_labelled(micro_batch(config)) for _ in range(count)]
    training._clip_grad_norm = steps.in_optimizer(training._clip_grad_norm)
    steps.watch(training.model)
    run(training, steps)


def _labelled(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"input_ids": batch["tokens"], "labels": batch["labels"], "shift_labels": batch["labels"]}


def whose(error: BaseException) -> str:
    """Return `settings`, `stand_in` or `job`."""
    chain = list(causes(error))
    if any(isinstance(one, ConfigError) for one in chain):
        return "settings"
    is_stand_in = any(isinstance(one, (StandInError, *OF_FAKE_TENSORS)) for one in chain)
    return "stand_in" if is_stand_in or any(sign in str(one) for one in chain for sign in SIGNS) else "job"
