"""The measured time of a step by kind, from a profile of the same job on the same machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evaluate.floor.calibration import calibrated
from evaluate.timing import breakdown
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.stream import TraceError
from utils.errors import DataError
from utils.provenance.digests import sha256_file
from utils.results.profile_file import FOLDER, Profile

LARGE_PERCENT = 25.0
"""Cost of the profiler, in percent of the unprofiled step, from which on the division is doubtful."""


class ProfileUnusableError(ValueError):
    """A profile has no trace that can be used; the message is the reason."""


@dataclass(frozen=True)
class Measured:
    """A step of a profiled run by kind, in seconds."""

    place: str
    """`profiles/<job>`."""
    by_kind: Mapping[str, float]
    """Without the cost of the profiler; sums to `step_seconds`."""
    profiled_by_kind: Mapping[str, float]
    step_seconds: float
    """Of the unprofiled steps of the profiled run; of the trace if there are none."""
    trace: Breakdown
    remarks: tuple[str, ...]


def of_profile(profile: Profile) -> Measured:
    """Return the measured time of a profile, from the trace of its first rank.

    Raises ProfileUnusableError if the trace is missing, changed or no trace.
    """
    place = f"{FOLDER}/{profile.path.parent.name}"
    rank = min(profile.traces, default=None)
    if rank is None:
        raise ProfileUnusableError(f"{place} has no trace: {'; '.join(profile.reasons.values()) or 'reason unknown'}")
    path, where = profile.trace_path(rank), f"{place}/{profile.traces[rank].file}"
    try:
        if sha256_file(path) != profile.traces[rank].sha256:
            raise ProfileUnusableError(f"{where} is not the trace that {profile.path.name} names: its SHA-256 differs")
        found = breakdown.of_file(path)
    except (DataError, OSError) as error:
        raise ProfileUnusableError(f"{where} cannot be read: {str(error).replace(str(path), where)}") from error
    except TraceError as error:
        raise ProfileUnusableError(str(error).replace(str(path), where)) from error
    wall = statistics.fmean(profile.profiled_step_seconds)
    wanted = profile.unprofiled_step_seconds
    by_kind = found.kinds
    if wanted is not None:
        between = found.step_seconds - wall
        by_kind = calibrated(found.kinds, found.recorded, between, wanted, is_of_host=found.is_of_host)
    remarks = tuple(_remarks(profile, found, wall, place))
    return Measured(place, by_kind, found.kinds, math.fsum(by_kind.values()), found, remarks)


def _remarks(profile: Profile, found: Breakdown, wall: float, place: str) -> Iterator[str]:
    unprofiled = profile.unprofiled_step_seconds
    if unprofiled is None:
        reason = profile.reasons.get("unprofiled_step_seconds", "not measured")
        yield f"{place}: the cost of the profiler is in the measured times, because its run has no other step: {reason}"
    elif (cost := 100 * (wall / unprofiled - 1)) > LARGE_PERCENT:
        yield (
            f"{place}: a profiled step is {cost:.0f} % longer than the others of its run, more than "
            f"{LARGE_PERCENT:.0f} %: its division into kinds is doubtful"
        )
    yield from (f"{place}: {remark}" for remark in found.remarks if remark != breakdown.OF_HOST)
