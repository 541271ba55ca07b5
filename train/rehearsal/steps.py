"""The steps of a rehearsal: how many are run, when one begins and ends, and the account of one whole step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from train.rehearsal.events import Event
from train.rehearsal.ledger import Ledger
from utils.settings.config import RunConfig

Batch = TypeVar("Batch")
GRADIENTS = ("grad", "main_grad")
"""Attributes of a parameter: torch's and megatron-core's."""
STEPS = 2
"""The first makes the optimizer's states; the account is that of the second."""


def shortened(config: RunConfig) -> RunConfig:
    """Return the settings of the rehearsal: two steps, with no more micro batches than show what each adds.

    With PP stages 1F1B has its steady state after PP - 1 micro batches; the last one is special, as it ends the step.
    """
    micro_batches = min(config.gradient_accumulation, config.pipeline_parallel_size + 2)
    return replace(
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

    def in_optimizer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose events belong to the optimizer's step."""

        def inside(*args: Any, **keywords: Any) -> Any:
            before, self._ledger.is_in_optimizer = self._ledger.is_in_optimizer, True
            try:
                return function(*args, **keywords)
            finally:
                self._ledger.is_in_optimizer = before

        return inside

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return an iterator over the micro batches."""
        return iter(batches)

    def start(self) -> None:
        """Begin the first step: what is there has been built."""
        self._ledger.is_building = False
        self.build_peak_bytes = self._ledger.memory.peak_bytes
        self._file()
        for parameter in self._model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda one: self._ledger.file("gradients", [one.grad]))
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
        total: Counter[Event] = Counter()
        for segment in self.segments:
            total.update(segment)
        left_out = config.gradient_accumulation - (len(self.segments) - 1)
        if left_out:
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
        self._ledger.file("gradients", [getattr(one, name, None) for one in parameters for name in GRADIENTS])

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._ledger.is_in_optimizer = True
        self._ledger.file("optimizer", [p for group in optimizer.param_groups for p in group["params"]])
        self._file()  # some of them are weights

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._ledger.is_in_optimizer = False
        self._ledger.file("optimizer", tree_leaves(list(optimizer.state.values())))
