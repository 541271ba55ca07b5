"""The step recorder: one stopwatch for every framework, called by our own loop or through a trainer's callback.

A step is one optimizer step from boundary to boundary, with everything that the framework does in it. The recorder
waits for the device at the boundary only, reads the loss there once, and stops the clock while it records and prints.
Inside a step it only reads the clock before and after each micro batch is fetched (`timed`). It runs no collective
during training: losses are averaged over ranks after the last step (`merge_ranks`). A profile (train/profiling/) starts
and ends between two steps, while the clock stands; its steps are no samples. The callbacks of trainers are in
`report.py`. torch is imported on use.

Other processes of the machine share the clock of the steps: `time.perf_counter` is CLOCK_MONOTONIC on Linux, one clock
for all processes since a boot. On another machine the same moment is found through the time of day, which is exact to
the milliseconds by which the machines' clocks differ.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from utils.readings import attempt
from utils.results.raw_samples import format_profiled, format_step
from utils.settings.profiling import PROFILED

Batch = TypeVar("Batch")

MEMORY_EVERY_STEPS = 10
"""Memory in use is read at step 1, 11, 21, ...: reading it is a third of the cost of a boundary, more on a GPU. The
peak is the device's own figure and misses nothing."""
UNKNOWN = -1.0
"""Wait of a rank that fetches no data (a pipeline stage); the maximum over ranks ignores it, as any wait is larger."""
BYTES_PER_GB = 1e9
CLOCK_KEY = "step_clock"
"""Key under which a trainer hands its times to the launcher, in `energy_metrics`; the launcher removes it."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NonFiniteError(RuntimeError):
    """The loss or the gradient norm is not a finite number; further training would measure nothing."""


class CpuDevice:
    """A process on the CPU; its resident set counts as device memory."""

    source = "resident set of the process (/proc/self/statm, getrusage)"

    def __init__(self) -> None:
        self._page_bytes = resource.getpagesize()
        # kept open, because opening it would be four fifths of the cost of a boundary
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


Device = CpuDevice | CudaDevice
"""The device that the recorder waits for, and its memory in GB (1e9 bytes); `source` is the origin of these figures."""


@dataclass
class Samples:
    """Raw samples, lists of equal length: one entry a step; `allocated_gb` has one every MEMORY_EVERY_STEPS."""

    steps: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    step_ends: list[float] = field(default_factory=list)
    """`time.perf_counter` at the end of each step, for what other processes measure; their clock is that of `clock`."""
    data_wait_seconds: list[float | None] = field(default_factory=list)
    """Time of each step for fetching its micro batches; None if it was not timed."""
    loss_values: list[Any] = field(default_factory=list)
    grad_norms: list[Any] = field(default_factory=list)
    learning_rates: list[Any] = field(default_factory=list)
    """Numbers; of a training that is known from its log None for what the log does not hold."""
    allocated_gb: list[float] = field(default_factory=list)


class ExpertTokens:
    """Tokens that the routers of a model send to each expert, counted on the device, without waiting for it.

    A layer that is computed again counts again, so `section` scales the numbers of a step to its tokens.
    """

    def __init__(self, routers: Iterable[tuple[Any, Callable[[Any], Any]]]) -> None:
        """Watch modules, each with a function of its output that returns the tokens of each expert."""
        self.steps: list[Any] = []
        """Counts of each finished step, summed over layers and micro batches of this rank, on its device."""
        self.of_all_ranks: list[list[int]] = []
        """The same of all ranks; empty until `merge_ranks`, which a training that fails never reaches."""
        self.why_unknown = ""
        """Reason where the counts could not be added up."""
        self._counts: Any = 0
        for module, count in routers:
            module.register_forward_hook(functools.partial(self._add, count))

    def _add(self, count: Callable[[Any], Any], module: Any, inputs: Any, output: Any) -> None:
        """Add the counts of one forward pass of a router; the arguments after the first are those of torch's hooks."""
        self._counts = self._counts + count(output).detach().long()

    def end_step(self) -> None:
        """Keep the counts of the step that has just ended."""
        self.steps.append(self._counts)
        self._counts = 0

    def merge_ranks(self) -> None:
        """Add up the counts of all ranks; every rank calls it."""
        import torch

        together = torch.stack(self.steps)
        torch.distributed.all_reduce(together)
        self.of_all_ranks = together.tolist()

    def section(self, chosen_in_a_step: int) -> dict[str, Any]:
        """Return the section `experts` of a result; a step chooses tokens x layers x experts of a token times."""
        shares = []
        for step in self.of_all_ranks:
            total = sum(step)
            shares.append([count / total for count in step])
        by_expert = zip(*shares, strict=True)
        return {
            "tokens": [round(sum(of_steps) * chosen_in_a_step) for of_steps in by_expert],
            "fullest_share": [max(step) for step in shares],
        }


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
        profile: Any = None,
    ) -> None:
        """`title` begins each progress line; only the rank with `is_reporter` prints.

        `profile` is the StepRecording of some steps (train/profiling/recording.py), which this package cannot import.
        """
        self.total_steps = total_steps
        self.device = device or CpuDevice()
        self.samples = Samples()
        self.profile = profile
        self.profiled_seconds: list[float] = []
        """Time of each profiled step so far, which is no sample."""
        self.peak_allocated_gb: float | None = None
        self.peak_reserved_gb: float | None = None
        self.avg_allocated_gb: float | None = None
        self.why_no_memory = ""
        """Reason where the figures of the memory could not be read."""
        self.memory_scope = "this rank"
        self._title = title
        self.is_reporter = is_reporter
        self._stream = stream or sys.stdout
        self.loop_seconds = 0.0
        """Seconds from `start` to the end of the last recorded step, without the profile. A second source of the step
        times, which it exceeds by what the recorder does between two steps."""
        self._loop_started = 0.0
        self._step_started: float | None = None
        self._is_timed = False
        self._waited_seconds = 0.0
        self._seconds_after_first = 0.0
        self.steps_done = 0
        """Finished steps, the profiled ones included."""
        self._profiled = range(0) if profile is None else profile.steps
        self.experts: ExpertTokens | None = None
        """Of a mixture of experts."""

    def start(self) -> None:
        """Start the clock of the first step."""
        self.device.synchronize()
        # after the wait: what building left in the device's queue is no part of the first step
        self._loop_started = self._step_started = time.perf_counter()
        self._turn_profile()

    @property
    def excluded_steps(self) -> dict[int, str]:
        """Reason of each finished step that is no sample, by its number."""
        # a training that failed has not reached all of them
        return {step: PROFILED for step in self._profiled if step <= self.steps_done}

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Return an iterator over `batches` from which the training takes its micro batches.

        The time of each `next` counts as the step's wait for data. Loader workers start here, not in the first step.
        """
        self._is_timed = True
        return self._timed(iter(batches))

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        asked = time.perf_counter()
        for batch in batches:
            # the time from `yield` to the next request is the training's, not the loader's
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
        step = self.steps_done + 1
        is_profiled = step in self._profiled
        if is_profiled:
            self.profile.end_step()
        # after the clock has been read: copying both to the host is no part of the step
        loss_value, norm = self._read(loss, grad_norm)
        learning_rate = float(learning_rate)
        if is_profiled:
            self.profiled_seconds.append(seconds)
        else:
            self._add(step, ended, seconds, loss_value, norm, learning_rate)
        # also of a step whose loss is not finite: it is recorded before the error
        self.steps_done = step
        self._waited_seconds = 0.0
        if self.experts is not None:
            self.experts.end_step()
        is_loss_finite = loss is None or math.isfinite(loss_value)  # NaN where this rank has no loss
        if not is_loss_finite or not math.isfinite(norm):
            raise NonFiniteError(f"step {step}: loss {loss_value}, gradient norm {norm}")
        # printed while the clock stands, which the statement after it starts again
        if self.is_reporter:
            self._print_progress(step, None if is_profiled else seconds, loss_value)
        self._step_started = time.perf_counter()
        if not is_profiled:
            self.loop_seconds = self._step_started - self._loop_started
        self._turn_profile()

    def _add(self, step: int, ended: float, seconds: float, loss: float, norm: float, learning_rate: float) -> None:
        """Add the samples of a step that is not profiled."""
        samples = self.samples
        if step % MEMORY_EVERY_STEPS == 1 or not samples.allocated_gb:
            samples.allocated_gb.append(self.device.allocated_gb())
        samples.steps.append(step)
        samples.step_times.append(seconds)
        samples.step_ends.append(ended)
        samples.data_wait_seconds.append(self._waited_seconds if self._is_timed else None)
        samples.loss_values.append(loss)
        samples.grad_norms.append(norm)
        samples.learning_rates.append(learning_rate)

    def _turn_profile(self) -> None:
        """Start or stop the profile before the next step, and start the clock of that step when this is done."""
        first, end, following = self._profiled.start, self._profiled.stop, self.steps_done + 1
        if not first <= following <= end:
            return
        if following == first:
            self.profile.start()
        if following == end:
            self.profile.stop()
        else:
            self.profile.begin_step(following)
        self.device.synchronize()
        self._step_started = time.perf_counter()
        self._loop_started = self._step_started - self.loop_seconds  # the loop's clock stands during the profile

    def _read(self, loss: Any, grad_norm: Any) -> tuple[float, float]:
        """Return both as numbers, the loss as NaN where this rank has none."""
        if loss is None:
            return math.nan, float(grad_norm)
        if not isinstance(self.device, CpuDevice):
            import torch

            # each reading of a GPU waits for a copy, so two tensors are copied together
            if isinstance(loss, torch.Tensor) and type(loss) is type(grad_norm) and loss.device == grad_norm.device:
                together = torch.stack([tensor.detach().double().reshape(()) for tensor in (loss, grad_norm)])
                loss, grad_norm = together.tolist()
        return float(loss), float(grad_norm)

    def merge_ranks(self, loss_group: Any = None) -> None:
        """After the last step: average losses over `loss_group` (data-parallel ranks), take the largest memory figures
        and, step by step, the longest wait for data over all ranks.

        Every rank calls it, after equally many steps. With one rank there are no samples to merge.
        """
        self.note_memory()
        import torch

        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            self._merge_samples(loss_group)
        if self.experts is not None:  # last: if it fails on one rank only, the losses are merged already
            _, self.experts.why_unknown = attempt(self.experts.merge_ranks)

    def _merge_samples(self, loss_group: Any) -> None:
        """Replace the samples of this rank by those of all ranks.

        Losses are NaN on every pipeline stage but the last. `loss_group` holds ranks of one stage, so NaN stays there.
        """
        import torch

        distributed = torch.distributed
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        losses = torch.tensor(self.samples.loss_values, dtype=torch.float64, device=device)
        distributed.all_reduce(losses, group=loss_group)
        self.samples.loss_values = (losses / distributed.get_world_size(loss_group)).tolist()
        # One collective for memory and waits. Infinity stands for an unknown figure of the memory and wins the maximum;
        # UNKNOWN, a negative number, stands for an unknown wait and loses it.
        figures = (self.avg_allocated_gb, self.peak_allocated_gb, self.peak_reserved_gb)
        numbers = _as_numbers(figures, unknown=math.inf)
        waits = _as_numbers(self.samples.data_wait_seconds, unknown=UNKNOWN)
        merged = torch.tensor(numbers + waits, dtype=torch.float64, device=device)
        distributed.all_reduce(merged, op=distributed.ReduceOp.MAX)
        of_all_ranks = merged.tolist()
        largest_figures = _from_numbers(of_all_ranks[: len(figures)], unknown=math.inf)
        self.avg_allocated_gb, self.peak_allocated_gb, self.peak_reserved_gb = largest_figures
        self.samples.data_wait_seconds = _from_numbers(of_all_ranks[len(figures) :], unknown=UNKNOWN)
        self.memory_scope = "largest over ranks"

    def note_memory(self) -> None:
        """Read this rank's memory figures; peaks that cannot be read are None, with the reason in `why_no_memory`."""
        allocated = self.samples.allocated_gb
        self.avg_allocated_gb = statistics.fmean(allocated) if allocated else None
        peaks, self.why_no_memory = attempt(lambda: (self.device.peak_allocated_gb(), self.device.peak_reserved_gb()))
        self.peak_allocated_gb, self.peak_reserved_gb = peaks or (None, None)

    def _print_progress(self, step: int, seconds: float | None, loss: float) -> None:
        """Print the line of a step; `seconds` is None for a profiled one."""
        count = len(self.samples.steps)
        memory_gb = self.samples.allocated_gb[-1] if count else self.device.allocated_gb()
        if seconds is None:
            line = format_profiled(self._title, step, self.total_steps, loss, memory_gb)
        else:
            average = seconds
            if count > 1:  # the first step compiles and warms up, so it is in no average but its own
                self._seconds_after_first += seconds
                average = self._seconds_after_first / (count - 1)
            line = format_step(self._title, step, self.total_steps, seconds, average, loss, memory_gb)
        self._stream.write(line)
        self._stream.flush()


def _as_numbers(values: Iterable[float | None], unknown: float) -> list[float]:
    return [unknown if value is None else value for value in values]


def _from_numbers(values: Iterable[float], unknown: float) -> list[float | None]:
    return [None if value == unknown else value for value in values]


def clock() -> dict[str, Any]:
    """Return the identity of this machine's clock, and the time of day (Unix seconds) at its 0."""
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        # a container may hide /proc; then only the time of day relates two clocks
        boot = ""
    return {"boot": boot, "unix_at_zero": time.time() - time.perf_counter()}


def shift_seconds(here: Mapping[str, Any], there: Mapping[str, Any]) -> float:
    """Return what must be added to a time of the clock `here` to get that of the clock `there`."""
    if here["boot"] and here["boot"] == there["boot"]:
        return 0.0
    return float(here["unix_at_zero"] - there["unix_at_zero"])
