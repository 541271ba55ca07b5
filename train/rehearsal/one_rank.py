"""One rank of a rehearsal: what changes in torch before a framework is imported, its training, the origin of a failure.

The other ranks have a stand-in: collectives have sizes and groups, but nobody answers. A training consists of the build
and run functions of train/train_mega.py or train/train_hf.py on tensors without data.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

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
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from train.rehearsal import device
from train.rehearsal.device import StandInError
from train.rehearsal.events import Event
from train.rehearsal.ledger import Ledger, replace
from utils.errors import ConfigError, causes
from utils.models import ModelSpec
from utils.settings.config import RunConfig

LOCAL = {"LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
OF_FAKE_TENSORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    MetadataMismatchError,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
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
    chosen = tokens * spec.experts_per_token
    # the logits are found by their shape, as the trainers do not name them
    ledger = Ledger(place, logits=(tokens * vocabulary, vocabulary), chosen=chosen)
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
        return make(*args, **keywords | {"backend": "fake"})

    def all_gather_object(objects: list[Any], mine: Any, group: Any = None) -> None:
        objects[:] = [mine] * len(objects)

    for module in (dist, dist.distributed_c10d):
        replace(module, new_group=new_group, all_gather_object=all_gather_object, barrier=lambda *_, **__: None)
    # torch reads the ranks of a mesh from a tensor, which therefore has data
    replace(DeviceMesh, __init__=unset_fake_temporarily()(DeviceMesh.__init__))
    init_device_mesh = unset_fake_temporarily()(device_mesh.init_device_mesh)
    for module in (dist, device_mesh, _fsdp_init):
        replace(module, init_device_mesh=init_device_mesh)
    # it makes a device of a name and the current device, which here is a device already
    replace(_fully_shard, _get_device_from_mesh=lambda mesh: ledger.device)


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
    if spec.num_experts:
        lend_balance(config, spec)
    training = build(config, spec, None, samples(config))
    training.loader = (micro_batch(config) for _ in itertools.count())
    training.optimizer.step = steps.in_optimizer()(training.optimizer.step)
    steps.watch(training.model)
    run(config, training, steps)


def lend_balance(config: RunConfig, spec: ModelSpec) -> None:
    """Have megatron-core's dispatcher send each expert of a layer as many tokens as every other one.

    It copies to the host how many tokens go from where to where; each such tensor tells of the choices of as many
    tokens as this rank has.
    """
    from megatron.core.transformer.moe import token_dispatcher

    copy = token_dispatcher.maybe_move_tensor_to_cpu
    choices = config.micro_batch_size * config.sequence_length * spec.experts_per_token

    def on_host(counts: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        copied = copy(counts, record_stream=record_stream)
        if not isinstance(copied, torch.Tensor):
            return copied
        with unset_fake_temporarily():
            return torch.full(copied.shape, choices // copied.numel()).numpy()

    replace(token_dispatcher, maybe_move_tensor_to_cpu=on_host)
    dispatcher = token_dispatcher.MoEAlltoAllTokenDispatcher
    replace(dispatcher, __init__=unset_fake_temporarily()(dispatcher.__init__))  # the order of chunks has data


def train_hf(
    config: RunConfig, spec: ModelSpec, steps: Steps, build: Callable[..., Any], run: Callable[..., None]
) -> None:
    """Build the Trainer of this rank and train all steps; weights are those of transformers, batches have no data."""
    from transformers import masking_utils

    masking_utils.is_tracing = lambda tensor=None: False  # of tensors that are traced it makes a mask in full
    training = build(config, spec, None, samples(config))
    count = STEPS * config.gradient_accumulation
    training.get_train_dataloader = lambda: [
        {"input_ids": batch["tokens"], "labels": batch["labels"], "shift_labels": batch["labels"]}
        for batch in (micro_batch(config) for _ in range(count))
    ]
    training._clip_grad_norm = steps.in_optimizer()(training._clip_grad_norm)
    steps.watch(training.model)
    run(training, steps)


def whose(error: BaseException) -> str:
    """Return `settings`, `stand_in` or `job`."""
    is_stand_in = False
    for cause in causes(error):
        if isinstance(cause, ConfigError):
            return "settings"
        has_sign = any(sign in str(cause) for sign in SIGNS)
        is_stand_in |= has_sign or isinstance(cause, (StandInError, *OF_FAKE_TENSORS))
    return "stand_in" if is_stand_in else "job"


# The steps: how many are run, when one begins and ends, and the account of one whole step

Batch = TypeVar("Batch")
GRADIENTS = ("grad", "main_grad")
"""Attributes of a parameter: torch's and megatron-core's."""
STEPS = 2
"""The first makes the optimizer's states; the account is that of the second."""


def shortened(config: RunConfig) -> RunConfig:
    """Return the settings of the rehearsal: two steps, with no more micro batches than show what each adds.

    With PP stages 1F1B has its steady state after PP - 1 micro batches; the last one is special, as it ends the step.
    """
    # each further one repeats the work of the one before
    micro_batches = min(config.gradient_accumulation, config.pipeline_parallel_size + 2)
    return dataclasses.replace(
        config,
        train_iterations=STEPS,
        warmup_iterations=1,
        gradient_accumulation=micro_batches,
        global_batch_size=micro_batches * config.micro_batch_size * config.data_parallel_size,
    )


def micro_batch(config: RunConfig) -> dict[str, torch.Tensor]:
    """Return a micro batch of the suite's data set, on the host."""
    shape = (config.micro_batch_size, config.sequence_length)
    numbers = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "labels", "position_ids")}
    return numbers | {"loss_mask": torch.ones(shape)}


def samples(config: RunConfig) -> SimpleNamespace:
    """Return the data set of a rehearsal, which has the settings that are read back and nothing else."""
    return SimpleNamespace(config=SimpleNamespace(random_seed=config.seed, sequence_length=config.sequence_length))


class Steps:
    """Stands in for the recorder of step times (train/job/recorder.py): it divides the events into micro batches."""

    def __init__(self, ledger: Ledger, *, has_pipeline: bool = False) -> None:
        self._ledger = ledger
        self._has_pipeline = has_pipeline
        self._model: torch.nn.Module
        self._ended = 0
        self.segments: list[Counter[Event]] = []
        """Events of the last step: before its first micro batch, then from the start of each micro batch on."""
        self.build_peak_bytes = 0
        self.peak_bytes = 0
        self.peak_by_kind: dict[str, int] = {}
        register_optimizer_step_pre_hook(self._before_optimizer)
        register_optimizer_step_post_hook(self._after_optimizer)

    def watch(self, model: torch.nn.Module) -> None:
        """Name the module whose call is a micro batch; its parameters are the weights."""
        self._model = model
        model.register_forward_pre_hook(lambda *_: self._begin_micro_batch())

    @contextmanager
    def in_optimizer(self) -> Iterator[None]:
        """Count the events of a block, or of a function decorated with it, in the optimizer's step."""
        before, self._ledger.is_in_optimizer = self._ledger.is_in_optimizer, True
        try:
            yield
        finally:
            self._ledger.is_in_optimizer = before

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return an iterator over the micro batches."""
        return iter(batches)

    def start(self) -> None:
        """Begin the first step: what is there has been built."""
        self._ledger.is_building = False
        self.build_peak_bytes = self._ledger.memory.peak_bytes
        self._file()
        for parameter in self._model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda weight: self._ledger.file("gradients", [weight.grad]))
        self._begin_step()

    def end_step(self, *, loss: Any, grad_norm: Any, learning_rate: float) -> None:
        """End a step. The last one's account is kept."""
        self._ended += 1
        memory = self._ledger.memory
        self.peak_bytes, self.peak_by_kind = memory.peak_bytes, memory.peak_by_kind
        self._ledger.segment = None
        if self._ended < STEPS:
            self._begin_step()

    def merge_ranks(self, loss_group: Any = None) -> None:
        """Do nothing: there is one rank."""

    def events(self, config: RunConfig) -> Counter[Event]:
        """Return the events of a whole step of `config`.

        The micro batches that were not run are like the last but one that was, which is in the steady state.
        """
        total: Counter[Event] = sum(self.segments, Counter())
        # the first segment is what comes before the first micro batch
        left_out = config.gradient_accumulation - (len(self.segments) - 1)
        for event, count in self.segments[-2].items():
            total[event] += left_out * count
        return total

    def _begin_step(self) -> None:
        self._ledger.memory.forget_peak()
        if self._ended == STEPS - 1:
            self._begin_segment()

    def _begin_segment(self) -> None:
        self._ledger.segment = Counter()
        self.segments.append(self._ledger.segment)

    def _begin_micro_batch(self) -> None:
        self._file()
        if self._ledger.segment is not None:
            self._begin_segment()

    def _file(self) -> None:
        parameters = list(self._model.parameters())
        if not self._has_pipeline:  # with one, a gradient may be on its way to another stage
            self._ledger.memory.refile("workspace", "gradients")  # all that a backward pass leaves
        self._ledger.file("weights", parameters)
        self._ledger.file("gradients", [getattr(weight, name, None) for weight in parameters for name in GRADIENTS])

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._ledger.is_in_optimizer = True
        self._ledger.file("optimizer", [p for group in optimizer.param_groups for p in group["params"]])
        self._file()  # some of them are weights

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._ledger.is_in_optimizer = False
        self._ledger.file("optimizer", tree_leaves(list(optimizer.state.values())))
