"""The profile of some steps of one rank, started and stopped by the recorder between two steps.

Each tool has a class: torch.profiler (`torch_recording.py`), nsys and rocprofv3 (`tools.py`). A rank that is not
recorded does nothing but wait. After the last profiled step every rank waits until all have written their files, so
that no rank begins a measured step while another one writes. torch is imported on use.
"""

from __future__ import annotations

import sys
from pathlib import Path

from train.job import disk
from utils.results.profile_file import Trace
from utils.settings.profiling import Profile

STEP = "ProfilerStep#"
"""Beginning of the mark of a step, as torch.profiler's own `step()` writes it; the number of the step follows."""


class StepRecording:
    """Base of the recordings; by itself it only waits for the other ranks."""

    def __init__(self, profile: Profile, folder: Path, rank: int) -> None:
        """`folder` is that of the job's profile."""
        self.profile = profile
        self.steps = profile.steps
        self.folder = folder
        self.rank = rank
        self.is_recorded = profile.has_rank(rank)
        self.trace: Trace | None = None
        self.reasons: dict[str, str] = {}
        """Why a file is missing, by its name without ending (`rank0`)."""

    @property
    def name(self) -> str:
        """Beginning of the names of this rank's files."""
        return f"rank{self.rank}"

    def start(self) -> None:
        """Start the tool; the device must be idle."""
        if self.is_recorded:
            self.start_tool()

    def stop(self) -> None:
        """Stop the tool, write its files, and wait for all ranks; a file that cannot be written has a reason."""
        if self.is_recorded:
            self.stop_tool()
        _wait_for_all()

    def start_tool(self) -> None:
        """Start the tool in a recorded rank."""

    def stop_tool(self) -> None:
        """Stop the tool in a recorded rank and write its files."""

    def begin_step(self, number: int) -> None:
        """Open the mark of a step."""

    def end_step(self) -> None:
        """Close the mark of the step, when the device has done its work."""

    def miss(self, name: str, error: Exception | str) -> None:
        """Note why a file is missing. The training goes on, so its result is not lost."""
        known = disk.reason(error, [self.folder]) if isinstance(error, Exception) else None
        self.reasons[name] = known or " ".join(str(error).split()) or type(error).__name__
        print(f"    warning: profile: {name}: {self.reasons[name]}", file=sys.stderr, flush=True)


def _wait_for_all() -> None:
    """Return when every rank has called it."""
    import torch

    distributed = torch.distributed
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    one = torch.ones(1, device="cuda" if distributed.get_backend() == "nccl" else "cpu")
    distributed.all_reduce(one)
    one.item()
