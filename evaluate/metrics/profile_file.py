"""Reader of the file of a profile, `profiles/<job>/profile.json` in OUTPUT_DIR: the profiled job, its steps and traces.

A job with PROFILING=true writes it after its last step (train/profiling/recording.py). A trace is a file of
torch.profiler beside it. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from utils.errors import quoted
from utils.results.fields import ABOVE_ZERO, OBJECT, TEXT, TIME, WHOLE, Wanted, checked, is_digest, is_whole, json_in
from utils.results.schema import is_text, with_later_settings
from utils.settings.profiling import VERSION, Trace

PLATFORMS = ("amd", "nvd", "cpu")
TRACE_NAME = re.compile(r"rank(?:0|[1-9][0-9]*)\.json\.gz")


class ProfileError(ValueError):
    """The file is not a valid profile; the message names file, key, value and what was wanted."""


@dataclass(frozen=True)
class Profile:
    """Some steps of one job under torch.profiler."""

    path: Path
    platform: str
    framework: str
    model: str
    model_size: str
    run: int
    host: str
    device_name: str
    started: datetime
    settings: Mapping[str, Any]
    """`training_config` of the same training without a profile, as its result holds it."""
    steps: tuple[int, ...]
    """Numbers of the profiled steps, from 1, one after the other."""
    ranks: tuple[int, ...]
    """Ranks whose steps were traced."""
    traces: Mapping[int, Trace]
    """By rank. A trace that could not be written is missing, with its reason in `reasons`."""
    profiled_step_seconds: tuple[float, ...]
    """Wall time of each profiled step of the reporting rank; the profiler's own cost is in it."""
    unprofiled_step_seconds: float | None
    """Mean of the steady steps of the same run that were not profiled; None with a reason where there are none."""
    reasons: Mapping[str, str]
    """Reason of each missing value, by its key; of a missing trace by `rank<R>`."""

    def trace_path(self, rank: int) -> Path:
        """Return the path of the trace of a rank; KeyError where it has none."""
        return self.path.parent / self.traces[rank].file


def read(path: Path) -> Profile:
    """Return the profile in a file; raise ProfileError for anything else."""
    return parse(json_in(path, ProfileError), path)


def parse(content: Any, path: Path) -> Profile:
    """Return the profile in the content of a file; raise ProfileError for anything else."""
    if not isinstance(content, dict) or content.get("profile_version") != VERSION:
        raise ProfileError(f"{path}: no profile of version {VERSION}; run the job again with PROFILING=true")
    found = checked(content, str(path), ProfileError, _KEYS)
    count, reasons = len(found["steps"]), found["reasons"]

    def are_seconds(value: Any) -> bool:
        return isinstance(value, list) and len(value) == count and all(map(ABOVE_ZERO.is_good, value))

    def are_seconds_or_unknown(value: Any) -> bool:
        is_explained = value is None and "unprofiled_step_seconds" in reasons
        return is_explained or bool(ABOVE_ZERO.is_good(value))

    of_steps = {
        "profiled_step_seconds": Wanted(are_seconds, f"the seconds of {count} steps", _as_seconds),
        "unprofiled_step_seconds": Wanted(are_seconds_or_unknown, "seconds, or null with a reason", _as_known_seconds),
    }
    found |= checked(content, str(path), ProfileError, of_steps)
    traces = _traces(found.pop("traces"), f"{path}: traces", found["ranks"], reasons)
    return Profile(path=path, started=found.pop("started_utc"), traces=traces, **found)


def _as_seconds(value: list[float]) -> tuple[float, ...]:
    return tuple(map(float, value))


def _as_known_seconds(value: float | None) -> float | None:
    return None if value is None else float(value)


def _traces(found: dict[str, Any], where: str, ranks: tuple[int, ...], reasons: Mapping[str, str]) -> dict[int, Trace]:
    """Return the traces by rank; a name may not lead out of the folder of the profile."""
    # a trace of a rank that was not traced is of another job
    if not set(found) <= set(map(str, ranks)):
        raise ProfileError(f"{where}: got {quoted(found)}, wanted a file and its digest by rank")
    wanted = {}
    for rank in ranks:
        # a rank has a trace or a reason, never neither
        if found.get(str(rank)) is not None or f"rank{rank}" not in reasons:
            text = f"file rank{rank}.json.gz and its sha256, or none and a reason as rank{rank}"
            wanted[str(rank)] = Wanted(_is_trace, text, _as_trace)
    return {int(rank): trace for rank, trace in checked(found, where, ProfileError, wanted).items()}


def _is_trace(found: Any) -> bool:
    if not isinstance(found, dict) or not is_digest(found.get("sha256")):
        return False
    return TRACE_NAME.fullmatch(str(found.get("file"))) is not None


def _as_trace(found: Mapping[str, str]) -> Trace:
    return Trace(found["file"], found["sha256"])


def _are_rising(found: Any, least: int) -> bool:
    if not isinstance(found, list) or not found:
        return False
    return all(is_whole(number, least) for number in found) and found == sorted(set(found))


def _are_steps(found: Any) -> bool:
    return _are_rising(found, 1) and bool(found[-1] - found[0] < len(found))


def _are_ranks(found: Any) -> bool:
    return _are_rising(found, 0)


def _are_reasons(found: Any) -> bool:
    return isinstance(found, dict) and all(map(is_text, found.values()))


def _are_settings(found: Any) -> bool:
    return isinstance(found, dict) and bool(found)


def _with_later_settings(found: Mapping[str, Any]) -> Any:
    return with_later_settings({"training_config": dict(found)})["training_config"]


_KEYS = {
    "platform": Wanted(PLATFORMS.__contains__, f"one of {', '.join(PLATFORMS)}"),
    "reasons": Wanted(_are_reasons, "texts by key"),
    "steps": Wanted(_are_steps, "the numbers of steps in a row, from 1", tuple),
    "ranks": Wanted(_are_ranks, "rising numbers of ranks, from 0, each once", tuple),
    "framework": TEXT,
    "model": TEXT,
    "model_size": TEXT,
    "host": TEXT,
    "device_name": TEXT,
    "run": WHOLE,
    "started_utc": TIME,
    "settings": Wanted(_are_settings, "the training_config of the job", _with_later_settings),
    "traces": OBJECT,
}
"""Keys whose rules do not depend on others."""
