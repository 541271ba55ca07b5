"""The profile of some steps of one rank: torch.profiler, started and stopped by the recorder between two steps.

Each step is a range `ProfilerStep#N`, where N is the number of the step in the results. The profiler is started once
for nothing before, because its first start loads the libraries of the device. After the last profiled step the trace is
written, and every rank waits until all have done so. torch is imported on use.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.job import disk
from train.profiling.trace_file import TraceError, write_trace
from utils.files import written_whole
from utils.results.profile_file import Trace
from utils.settings.profiling import Profile

STEP = "ProfilerStep#"
"""Beginning of the mark of a step, as torch.profiler's own `step()` writes it."""
MOST_MEMORY_EVENTS = 1_000_000
"""Allocations and frees that a snapshot keeps, the last ones; each takes some hundred bytes of host memory."""
NO_ALLOCATOR = "a CPU has no caching allocator; the trace has each allocation"


class StepRecording:
    """Records the profiled steps of this rank, or only waits for the ranks that record."""

    def __init__(self, profile: Profile, folder: Path, rank: int) -> None:
        """`folder` is that of the job's profile."""
        self.profile = profile
        self.steps = profile.steps
        self.folder = folder
        self.rank = rank
        self.is_recorded = profile.has_rank(rank)
        self.trace: Trace | None = None
        self.reasons: dict[str, str] = {}
        """Why a file is missing, by `rank<R>` and `rank<R>_memory`."""
        self._profiler: Any = None
        self._mark: Any = None

    def start(self) -> None:
        """Start the profiler; the device must be idle. Does nothing in a rank that is not recorded."""
        if not self.is_recorded:
            return
        try:
            _start_once_for_nothing()
            self._profiler = _profiler(with_memory=self.profile.with_memory)
            gc.collect()  # not inside of a profiled step
            if self.profile.with_memory:
                _record_memory(MOST_MEMORY_EVENTS)
            self._profiler.start()
        except RuntimeError as error:  # another profiler is active, or the device refuses
            self._profiler = None
            self._miss(self._name, f"torch.profiler cannot start: {error}")

    def begin_step(self, number: int) -> None:
        """Open the mark of a step."""
        if self._profiler is None:
            return
        from torch.profiler import record_function

        self._mark = record_function(f"{STEP}{number}")
        self._mark.__enter__()

    def end_step(self) -> None:
        """Close the mark of the step, when the device has done its work."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def stop(self) -> None:
        """Stop the profiler, write its files, and wait for all ranks; a file that cannot be written has a reason."""
        if self._profiler is not None:
            self._profiler.stop()
            self._write()
            self._profiler = None
        _wait_for_all()

    def _write(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.trace = write_trace(self._profiler, self.folder / f"{self._name}.json.gz")
        except (OSError, RuntimeError, TraceError) as error:
            self._miss(self._name, _why(error, self.folder))
        if self.profile.with_memory:
            self._write_memory()

    def _write_memory(self) -> None:
        import torch

        name = f"{self._name}_memory"
        if not torch.cuda.is_available():
            self.reasons[name] = NO_ALLOCATOR
            return
        try:
            with written_whole(self.folder / f"{name}.pickle") as (temporary,):
                torch.cuda.memory._dump_snapshot(str(temporary))
        except (OSError, RuntimeError) as error:
            self._miss(name, _why(error, self.folder))
        _record_memory(None)

    @property
    def _name(self) -> str:
        return f"rank{self.rank}"

    def _miss(self, name: str, reason: str) -> None:
        """Note that a file is missing. The training goes on, so its result is not lost."""
        self.reasons[name] = reason
        print(f"    warning: profile: {name}: {reason}", file=sys.stderr, flush=True)


def _profiler(*, with_memory: bool) -> Any:
    """Return a profiler of the CPU and, where there is one, the GPU (CUDA and ROCm have the same name in torch)."""
    import torch
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    return torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=with_memory)


def _start_once_for_nothing() -> None:
    import torch

    with _profiler(with_memory=False):
        torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu").add_(1)
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _record_memory(most_events: int | None) -> None:
    """Let the allocator of the GPU keep its last events; None ends it. Nothing happens without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return
    if most_events is None:
        torch.cuda.memory._record_memory_history(enabled=None)
    else:
        torch.cuda.memory._record_memory_history(max_entries=most_events)


def _wait_for_all() -> None:
    """Return when every rank has called it, so that no rank begins a measured step while another one writes."""
    import torch

    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    one = torch.ones(1, device="cuda" if distributed.get_backend() == "nccl" else "cpu")
    distributed.all_reduce(one)
    one.item()


def _why(error: Exception, folder: Path) -> str:
    with suppress(OSError):
        if known := disk.reason(error, [folder]):
            return known
    return " ".join(str(error).split()) or type(error).__name__
