"""The file of a profile, `profiles/<job>/profile.json` in OUTPUT_DIR: the profiled job, its steps and its traces.

A job with PROFILING=true writes it after its last step (train/profiling/); `evaluate` reads it to attribute a step's
time. A trace is a file of torch.profiler beside it. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from utils.errors import quoted
from utils.input_files import InputFileError, json_of
from utils.own_files import json_with
from utils.results.schema import time_of

VERSION = 1
NAME = "profile.json"
FOLDER = "profiles"
"""Folder of the profiles of all jobs in OUTPUT_DIR."""
PLATFORMS = ("amd", "nvd", "cpu")
TRACE_NAME = re.compile(r"rank(?:0|[1-9][0-9]*)\.json\.gz")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TEXTS = ("framework", "model", "model_size", "host", "device_name")

is_profile = json_with("profile_version", "traces")
"""Recogniser of the file of any version."""


class ProfileError(ValueError):
    """The file is not a valid profile; the message names file, key, value and what was wanted."""


@dataclass(frozen=True)
class Trace:
    """One trace of one rank."""

    file: str
    """Its name in the folder of the profile."""
    sha256: str


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
    try:
        content = json_of(path)
    except InputFileError as error:
        raise ProfileError(f"{path}: cannot be read as JSON: {error}") from error
    return parse(content, path)


def parse(content: Any, path: Path) -> Profile:
    """Return the profile in the content of a file; raise ProfileError for anything else."""
    if not isinstance(content, dict) or content.get("profile_version") != VERSION:
        raise ProfileError(f"{path}: no profile of version {VERSION}; run the job again with PROFILING=true")
    if content.get("platform") not in PLATFORMS:
        raise _error(path, "platform", content.get("platform"), f"one of {', '.join(PLATFORMS)}")
    for key in _TEXTS:
        if not isinstance(content.get(key), str) or not content[key]:
            raise _error(path, key, content.get(key), "a text")
    reasons = content.get("reasons")
    if not isinstance(reasons, dict) or not all(isinstance(text, str) and text for text in reasons.values()):
        raise _error(path, "reasons", reasons, "texts by key")
    if not isinstance(content.get("settings"), dict) or not content["settings"]:
        raise _error(path, "settings", content.get("settings"), "the training_config of the job")
    steps, ranks = _steps(content, path), _ranks(content, path)
    return Profile(
        path=path,
        platform=content["platform"],
        **{key: content[key] for key in _TEXTS},
        run=_whole(content.get("run"), path, "run", least=1),
        started=_started(content.get("started_utc"), path),
        settings=content["settings"],
        steps=steps,
        ranks=ranks,
        traces=_traces(content.get("traces"), ranks, reasons, path),
        profiled_step_seconds=_step_seconds(content.get("profiled_step_seconds"), len(steps), path),
        unprofiled_step_seconds=_unprofiled(content, reasons, path),
        reasons=reasons,
    )


def _error(path: Path, key: str, value: Any, wanted: str) -> ProfileError:
    return ProfileError(f"{path}: {key}: got {quoted(value)}, wanted {wanted}")


def _whole(value: Any, path: Path, key: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise _error(path, key, value, f"a whole number from {least}")
    return value


def _started(value: Any, path: Path) -> datetime:
    try:
        return time_of(value)
    except ValueError as error:
        raise _error(path, "started_utc", value, "a UTC time") from error


def _steps(content: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    steps = _numbers(content.get("steps"), least=1)
    if not steps or list(steps) != list(range(steps[0], steps[0] + len(steps))):
        raise _error(path, "steps", content.get("steps"), "the numbers of steps in a row, from 1")
    return steps


def _ranks(content: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    ranks = _numbers(content.get("ranks"), least=0)
    if not ranks or list(ranks) != sorted(set(ranks)):
        raise _error(path, "ranks", content.get("ranks"), "rising numbers of ranks, from 0, each once")
    return ranks


def _numbers(found: Any, least: int) -> tuple[int, ...]:
    """Return a list of whole numbers from `least`; empty for anything else."""
    is_list = isinstance(found, list) and all(type(number) is int and number >= least for number in found)
    return tuple(found) if is_list else ()


def _traces(found: Any, ranks: tuple[int, ...], reasons: Mapping[str, str], path: Path) -> dict[int, Trace]:
    """Return the traces by rank; a name may not lead out of the folder of the profile."""
    if not isinstance(found, dict) or not set(found) <= {str(rank) for rank in ranks}:
        raise _error(path, "traces", found, "a file and its digest by rank")
    traces = {}
    for rank in ranks:
        one = found.get(str(rank))
        if one is None:
            if f"rank{rank}" not in reasons:
                raise _error(path, f"traces.{rank}", None, f"a file and its digest, or a reason as rank{rank}")
            continue
        name, digest = (one.get("file"), one.get("sha256")) if isinstance(one, dict) else (None, None)
        is_named = isinstance(name, str) and TRACE_NAME.fullmatch(name) is not None
        if not is_named or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise _error(path, f"traces.{rank}", one, f"file rank{rank}.json.gz and its sha256")
        traces[rank] = Trace(str(name), digest)
    return traces


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0


def _step_seconds(found: Any, count: int, path: Path) -> tuple[float, ...]:
    if not isinstance(found, list) or len(found) != count or not all(map(_is_seconds, found)):
        raise _error(path, "profiled_step_seconds", found, f"the seconds of {count} steps")
    return tuple(map(float, found))


def _unprofiled(content: Mapping[str, Any], reasons: Mapping[str, str], path: Path) -> float | None:
    found = content.get("unprofiled_step_seconds")
    if found is None and "unprofiled_step_seconds" in reasons:
        return None
    if found is None or not _is_seconds(found):
        raise _error(path, "unprofiled_step_seconds", found, "seconds, or null with a reason")
    return float(found)
