"""The step recorder: one stopwatch for every framework, called by our own loop or through a trainer's callback.

A step is one optimizer step from boundary to boundary, with everything that the framework does in it. The recorder
waits for the device at the boundary only, reads the loss there once, and stops the clock while it records and prints.
Inside a step it only reads the clock before and after each micro batch is fetched (`timed`). It runs no collective
during training: losses are averaged over ranks after the last step (`merge_ranks`). torch is imported on use.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO, TypeVar

from utils.results.step_line import format_step

Batch = TypeVar("Batch")

BYTES_PER_GB = 1e9
MEMORY_EVERY_STEPS = 10
"""Memory in use is read at step 1, 11, 21, ...: reading it is a third of the cost of a boundary, more on a GPU. The
peak is the device's own figure and misses nothing."""
UNKNOWN = -1.0
"""Wait of a rank that fetches no data (a pipeline stage); the maximum over ranks ignores it, as any wait is larger."""


class NonFiniteError(RuntimeError):
    """The loss or the gradient norm is not a finite number; further training would measure nothing."""


class Device(Protocol):
    """Interface of the device that the recorder waits for."""

    source: str
    """Origin of the memory figures."""

    def synchronize(self) -> None:
        """Wait until all work of the device is done."""

    def allocated_gb(self) -> float:
        """Memory in use now, GB (1e9 bytes)."""

    def peak_allocated_gb(self) -> float:
        """Largest memory in use since the start, GB."""

    def peak_reserved_gb(self) -> float | None:
        """Largest memory held by the caching allocator, GB; None where there is none."""


class CpuDevice:
    """A process on the CPU; its resident set counts as device memory."""

    source = "resident set of the process (/proc/self/statm, getrusage)"

    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()
        # kept open, because opening it would be four fifths of the cost of a boundary (docs/performance.md)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    def synchronize(self) -> None:
        """Do nothing: CPU work is done when its call returns."""

    def allocated_gb(self) -> float:
        """Resident set now, GB."""
        pages = int(os.pread(self._statm, 128, 0).split()[1])
        return pages * self._page_bytes / BYTES_PER_GB

    def peak_allocated_gb(self) -> float:
        """Largest resident set of the process, GB (ru_maxrss is in KiB on Linux)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / BYTES_PER_GB

    def peak_reserved_gb(self) -> float | None:
        """None: there is no caching allocator."""
        return None


class CudaDevice:
    """The current CUDA or ROCm device of torch; memory as torch's caching allocator counts it."""

    source = "torch.cuda allocator statistics"

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._cuda.reset_peak_memory_stats()

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        self._cuda.synchronize()

    def allocated_gb(self) -> float:
        """Bytes of live tensors now, in GB."""
        return self._cuda.memory_allocated() / BYTES_PER_GB

    def peak_allocated_gb(self) -> float:
        """Largest amount of live tensors, GB."""
        return self._cuda.max_memory_allocated() / BYTES_PER_GB

    def peak_reserved_gb(self) -> float | None:
        """Largest amount that the allocator held, GB."""
        return self._cuda.max_memory_reserved() / BYTES_PER_GB


@dataclass
class Samples:
    """Raw samples, lists of equal length: one entry a step; `allocated_gb` has one every MEMORY_EVERY_STEPS."""

    steps: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    step_ends: list[float] = field(default_factory=list)
    """`time.perf_counter` at the end of each step, for what other processes measure (train/job/step_clock.py)."""
    data_wait_seconds: list[float | None] = field(default_factory=list)
    """Time of each step for fetching its micro batches; None if it was not timed."""
    loss_values: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    allocated_gb: list[float] = field(default_factory=list)


class StepRecorder:
    """Records every step of one rank. Call `start` before the first step, `end_step` after each, then `merge_ranks`."""

    def __init__(
        self,
        total_steps: int,
        *,
        device: Device | None = None,
        title: str = "CPU",
        is_reporter: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        """`title` begins each progress line; only the rank with `is_reporter` prints."""
        self.total_steps = total_steps
        self.device = device or CpuDevice()
        self.samples = Samples()
        self.peak_allocated_gb: float | None = None
        self.peak_reserved_gb: float | None = None
        self.avg_allocated_gb: float | None = None
        self.memory_scope = "this rank"
        self._title = title
        self.is_reporter = is_reporter
        self._stream = stream or sys.stdout
        self._loop_started: float | None = None
        self._step_started: float | None = None
        self._is_timed = False
        self._waited_seconds = 0.0
        self._seconds_after_first = 0.0

    def start(self) -> None:
        """Start the clock of the first step."""
        self.device.synchronize()
        self._loop_started = self._step_started = time.perf_counter()

    @property
    def loop_seconds(self) -> float | None:
        """Seconds from `start` to the end of the last recorded step; None before it. A second source of the step times,
        which it exceeds by what the recorder does between two steps."""
        if self._loop_started is None or self._step_started is None or not self.samples.steps:
            return None
        return self._step_started - self._loop_started

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return an iterator over `batches` from which the training takes its micro batches.

        The time of each `next` counts as the step's wait for data. Loader workers start here, not in the first step.
        """
        self._is_timed = True
        return self._timed(iter(batches))

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        asked = time.perf_counter()
        for batch in batches:
            self._waited_seconds += time.perf_counter() - asked
            yield batch
            asked = time.perf_counter()

    def end_step(self, *, loss: Any, grad_norm: Any, learning_rate: float) -> None:
        """Record one finished optimizer step and start the clock of the next.

        `loss` (nats per token) and `grad_norm` (L2, before clipping) are numbers or one-element tensors; a rank that
        has no loss (an early pipeline stage) passes None, recorded as NaN. Raises NonFiniteError after recording a
        loss or norm that is not finite; if anything else is raised, nothing of the step is recorded.
        """
        if self._step_started is None:
            raise RuntimeError("end_step was called before start; call start before the first step")
        self.device.synchronize()
        ended = time.perf_counter()
        seconds = ended - self._step_started
        loss_value, norm = self._read(loss, grad_norm)
        learning_rate, samples = float(learning_rate), self.samples
        step = len(samples.steps) + 1
        if step % MEMORY_EVERY_STEPS == 1:
            samples.allocated_gb.append(self.device.allocated_gb())
        samples.steps.append(step)
        samples.step_times.append(seconds)
        samples.step_ends.append(ended)
        samples.data_wait_seconds.append(self._waited_seconds if self._is_timed else None)
        self._waited_seconds = 0.0
        samples.loss_values.append(loss_value)
        samples.grad_norms.append(norm)
        samples.learning_rates.append(learning_rate)
        if not math.isfinite(norm) or (loss is not None and not math.isfinite(loss_value)):
            raise NonFiniteError(f"step {step}: loss {loss_value}, gradient norm {norm}")
        if self.is_reporter:
            self._print_progress(step, seconds, loss_value)
        self._step_started = time.perf_counter()

    def _read(self, loss: Any, grad_norm: Any) -> tuple[float, float]:
        """Return both as numbers. Each reading of a GPU waits for a copy, so that two tensors are copied together; on a
        CPU this would take longer than reading both.
        """
        if not isinstance(self.device, CpuDevice) and loss is not None:
            import torch

            if isinstance(loss, torch.Tensor) and type(loss) is type(grad_norm) and loss.device == grad_norm.device:
                together = torch.stack([tensor.detach().double().reshape(()) for tensor in (loss, grad_norm)])
                first, second = together.tolist()
                return first, second
        return math.nan if loss is None else float(loss), float(grad_norm)

    def merge_ranks(self, loss_group: Any = None) -> None:
        """After the last step: average losses over `loss_group` (data-parallel ranks), take the largest memory figures
        and, step by step, the longest wait for data over all ranks.

        Every rank calls it. Without torch.distributed it only records the memory.
        """
        self.note_memory()
        import torch

        distributed = torch.distributed
        if not distributed.is_initialized() or distributed.get_world_size() == 1:
            return
        where = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        losses = torch.tensor(self.samples.loss_values, dtype=torch.float64, device=where)
        distributed.all_reduce(losses, group=loss_group)
        self.samples.loss_values = (losses / distributed.get_world_size(loss_group)).tolist()
        memory = [self.avg_allocated_gb or 0.0, self.peak_allocated_gb or 0.0, self.peak_reserved_gb or 0.0]
        waits = [UNKNOWN if wait is None else wait for wait in self.samples.data_wait_seconds]
        largest = torch.tensor([*memory, *waits], dtype=torch.float64, device=where)
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
        self.avg_allocated_gb, self.peak_allocated_gb, reserved, *waits = largest.tolist()
        self.samples.data_wait_seconds = [None if wait == UNKNOWN else wait for wait in waits]
        self.peak_reserved_gb = None if self.peak_reserved_gb is None else reserved
        self.memory_scope = "largest over ranks"

    def note_memory(self) -> None:
        """Read this rank's memory figures."""
        allocated = self.samples.allocated_gb
        self.avg_allocated_gb = statistics.fmean(allocated) if allocated else None
        self.peak_allocated_gb = self.device.peak_allocated_gb()
        self.peak_reserved_gb = self.device.peak_reserved_gb()

    def _print_progress(self, step: int, seconds: float, loss: float) -> None:
        self._seconds_after_first += seconds if step > 1 else 0.0
        average = self._seconds_after_first / (step - 1) if step > 1 else seconds
        memory_gb = self.samples.allocated_gb[-1]
        self._stream.write(format_step(self._title, step, self.total_steps, seconds, average, loss, memory_gb))
        self._stream.flush()


StepReader = Callable[[], tuple[Any, Any, float]]
"""Function that returns (loss, gradient norm, learning rate) of the step that has just ended."""


def hf_callback(recorder: StepRecorder, read_step: StepReader) -> Any:
    """Return a `BenchmarkCallback` for the Hugging Face Trainer that feeds the recorder."""
    from transformers import TrainerCallback

    class BenchmarkCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loss, grad_norm, learning_rate = read_step()
            recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate)

    return BenchmarkCallback()


def lightning_callback(recorder: StepRecorder, read_step: StepReader) -> Any:
    """Return a `BenchmarkCallback` for Lightning (and so NeMo) that feeds the recorder.

    Lightning's batch is one optimizer step when NeMo's data step holds all its micro batches; with Lightning's own
    accumulation, `global_step` shows which batches end an optimizer step, and the others are skipped.
    """
    from lightning.pytorch import Callback

    class BenchmarkCallback(Callback):
        def __init__(self) -> None:
            self._steps_done = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._steps_done = trainer.global_step
            recorder.start()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == self._steps_done:
                return
            self._steps_done = trainer.global_step
            loss, grad_norm, learning_rate = read_step()
            recorder.end_step(loss=loss, grad_norm=grad_norm, learning_rate=learning_rate)

    return BenchmarkCallback()
