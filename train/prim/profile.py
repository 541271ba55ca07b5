"""The profile of a job by Primus: its traces, moved to the folder of the job's profile, and profile.json beside them.

Primus profiles by its own keys (train/settings_map/training_rows.py) and writes below its workspace. The numbers of its
marks `ProfilerStep#N` are those of the steps: Megatron calls `prof.step()` at the begin of each iteration.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from train.job.job import profile_folder
from train.prim.log_report import LogReport
from train.profiling.recording import Files, profile_content, warnings_of, write_profile
from train.profiling.tools import compress
from utils.errors import ForeignFileError
from utils.files import written_whole
from utils.provenance.digests import sha256_file
from utils.results.profile_file import Trace
from utils.settings.profiling import Profile

NAMES = (
    # tensorboard_trace_handler with the worker name of Primus (torch_profiler_patches.py)
    re.compile(r"primus-megatron-exp\[.*\]-rank\[(?P<rank>\d{1,9})\]\..*\.pt\.trace\.json(?:\.gz)?"),
    # Megatron-LM d3528a2, training.py, `trace_handler`, where Primus does not replace it
    re.compile(r"rank-(?P<rank>\d{1,9})\.json(?:\.gz)?"),
)
"""Names of a rank's trace."""
NO_SNAPSHOT = "this version requests no memory snapshot of Primus"


def take_profile(report: LogReport, profile: Profile, workspace: Path, step_seconds: Mapping[int, float]) -> list[str]:
    """Move the traces of a training that has ended well and write profile.json; return warnings for the result.

    `step_seconds` has the time of each printed step by its number.
    """
    folder = profile_folder(report.job)
    left = traces(workspace)
    files = [_taken(rank, left.get(rank), profile, folder) for rank in profile.ranks_of(report.job.config.num_gpus)]
    missing = [str(step) for step in profile.steps if step not in step_seconds]
    if missing:
        return [
            f"profile: Primus printed no time of the profiled step {', '.join(missing)}; no profile.json is written"
        ]
    seconds = [step_seconds[step] for step in profile.steps]
    found = profile_content(report.result("ok", None), profile, seconds, files)
    print(f"    profile: {profile.text}, in {folder}", flush=True)
    return [*warnings_of(files), *write_profile(folder, found)]


def traces(workspace: Path) -> dict[int, Path]:
    """Return the trace of each rank below the workspace of Primus; of several, the last one by name."""
    found = {}
    for path in sorted(workspace.rglob("*.json*")):
        match = next((match for name in NAMES if (match := name.fullmatch(path.name))), None)
        if match is not None and path.is_file():
            found[int(match["rank"])] = path
    return found


def _taken(rank: int, source: Path | None, profile: Profile, folder: Path) -> Files:
    """Move the trace of a rank; a trace that is missing or cannot be moved has a reason."""
    reasons = {f"rank{rank}_memory": NO_SNAPSHOT} if profile.with_memory else {}
    if source is None:
        return Files(rank, None, reasons | {f"rank{rank}": "Primus wrote no trace of this rank"})
    target = folder / f"rank{rank}.json.gz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as (temporary,):
            if source.suffix == ".gz":
                shutil.copyfile(source, temporary)
            else:
                compress(source, temporary)
        source.unlink()
    except (OSError, ForeignFileError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Files(rank, None, reasons | {f"rank{rank}": f"{target}: {why}"})
    return Files(rank, Trace(target.name, sha256_file(target)), reasons)
