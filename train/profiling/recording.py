"""The profile of some steps of one rank, started and stopped by the recorder between two steps.

`tools.py` has a class for each tool: torch.profiler, nsys and rocprofv3. A rank that is not recorded does nothing but
wait. After the last profiled step every rank waits until all have written their files, so that no rank begins a
measured step while another one writes. profile.json, which is written beside the traces when the job has ended well,
lists them; evaluate/metrics/profile_file.py reads it and states its format. torch is imported on use.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.job.job import disk_reason
from utils.errors import ForeignFileError
from utils.readings import attempt
from utils.results import store
from utils.settings import profiling
from utils.settings.profiling import NO_PROFILE, Profile, Trace

STEP = "ProfilerStep#"
"""Beginning of the mark of a step, as torch.profiler's own `step()` writes it; the number of the step follows."""


class StepRecording:
    """Base of the recordings; by itself that of a rank that is not recorded, which only waits for the other ranks."""

    _marks = ExitStack()
    """The open mark of a step."""

    def __init__(self, profile: Profile, folder: Path, rank: int) -> None:
        """`folder` is that of the job's profile."""
        self.profile = profile
        self.steps = profile.steps
        self.folder = folder
        self.rank = rank
        self.trace: Trace | None = None
        self.reasons: dict[str, str] = {}
        """Why a file is missing, by its name without ending (`rank0`)."""

    @property
    def name(self) -> str:
        """Beginning of the names of this rank's files."""
        return f"rank{self.rank}"

    def start(self) -> None:
        """Start the tool; the device must be idle."""

    def stop(self) -> None:
        """Stop the tool, write its files, and wait for all ranks; a file that cannot be written has a reason."""
        import torch

        # the training is measured; a lost profile must not lose it
        _, why = attempt(self.stop_tool)
        if why:
            self.miss(self.name, why)
        # a rank that goes on would measure a step while another one writes
        if torch.distributed.is_initialized():
            torch.distributed.barrier()

    def stop_tool(self) -> None:
        """Stop the tool and write its files."""

    def begin_step(self, number: int) -> None:
        """Open the mark of a step."""

    def end_step(self) -> None:
        """Close the mark of the step, when the device has done its work."""
        self._marks.close()

    def miss(self, name: str, error: Exception | str) -> None:
        """Note why a file is missing. The training goes on, so its result is not lost."""
        known = disk_reason(error, [self.folder]) if isinstance(error, Exception) else None
        self.reasons[name] = known or " ".join(str(error).split()) or type(error).__name__
        print(f"    warning: profile: {name}: {self.reasons[name]}", file=sys.stderr, flush=True)


NO_FILE = "the rank wrote no trace"


@dataclass(frozen=True)
class Files:
    """Files of one recorded rank."""

    rank: int
    trace: Trace | None
    reasons: Mapping[str, str]
    """Why a file is missing, by its name without ending."""


def gather_files(recording: StepRecording) -> list[Files]:
    """Return the files of all recorded ranks; every rank calls it after the last step."""
    import torch

    is_recorded = recording.profile.has_rank(recording.rank)
    mine = Files(recording.rank, recording.trace, recording.reasons) if is_recorded else None
    distributed = torch.distributed
    of_ranks: list[Files | None] = [mine]
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        of_ranks = [None] * distributed.get_world_size()
        distributed.all_gather_object(of_ranks, mine)
    return sorted((files for files in of_ranks if files is not None), key=lambda files: files.rank)


def write_profile(
    folder: Path, result: Mapping[str, Any], profile: Profile, step_seconds: Sequence[float], files: Sequence[Files]
) -> list[str]:
    """Write profile.json into the folder of a profile; return a warning if it cannot be written.

    It is made from the `result` of the job, the times of its profiled steps and the files of its ranks. The
    measurements of the job do not depend on it.
    """
    mean = result["performance_metrics"]["avg_step_time_seconds"]
    reasons: dict[str, str] = {}
    for recorded in files:
        reasons |= recorded.reasons
    ranks = profile.ranks_of(result["training_config"]["num_gpus"])
    traces = {recorded.rank: recorded.trace for recorded in files if recorded.trace is not None}
    for rank in ranks:
        if rank not in traces:
            reasons.setdefault(f"rank{rank}", NO_FILE)
    if mean is None:
        reasons["unprofiled_step_seconds"] = "no step was measured"
    # reasons for unknown settings are no settings
    settings = {key: value for key, value in result["training_config"].items() if key != "reasons"}
    content = {
        "profile_version": profiling.VERSION,
        **{key: result[key] for key in ("platform", "framework", "model", "model_size", "run")},
        "host": result["provenance"]["host"],
        "device_name": result["gpu_info"]["device_name"],
        "started_utc": result["provenance"]["started_utc"],
        "settings": settings | {"profile": NO_PROFILE},  # as the result of the same training without a profile has them
        "steps": list(profile.steps),
        "ranks": list(ranks),
        "traces": {str(rank): asdict(trace) for rank, trace in sorted(traces.items())},
        "profiled_step_seconds": [float(f"{seconds:.6g}") for seconds in step_seconds],
        "unprofiled_step_seconds": None if mean is None else float(f"{mean:.6g}"),
        "reasons": reasons,
    }
    try:
        store.write_json(content, folder / profiling.NAME, is_ours=profiling.is_profile)
    except (OSError, ForeignFileError) as error:
        return [f"profile: {profiling.NAME}: {getattr(error, 'strerror', None) or error}"]
    return []


def warnings_of(files: Sequence[Files]) -> list[str]:
    """Return a warning for each trace that is missing."""
    warnings = []
    for recorded in files:
        name = f"rank{recorded.rank}"
        # a missing file of the allocator is no warning: a CPU never has one
        if name in recorded.reasons:
            warnings.append(f"profile: {name}: {recorded.reasons[name]}")
    return warnings
