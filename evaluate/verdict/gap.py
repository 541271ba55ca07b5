"""The gap of a pair by kind of time: the steps of one profile of each side, divided in the same way.

Both steps are those of the profiled runs, with the cost of the profiler in them, so they are longer than the steps that
the verdict compares. The differences of the kinds sum to the difference of both steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluate.metrics import measured_rate
from evaluate.metrics.measured_rate import Probes
from evaluate.metrics.partition import format_of
from evaluate.metrics.profile_file import Profile
from evaluate.timing.kinds import KINDS, PHASES
from evaluate.verdict.sentences import NOT_COMPARABLE, Judged
from evaluate.verdict.side_names import Layout
from evaluate.verdict.system import TRAITS
from utils.errors import DataError
from utils.provenance.digests import sha256_file
from utils.results.schema import Result
from utils.settings.profiling import FOLDER

if TYPE_CHECKING:  # most comparisons have no profile
    from evaluate.timing.breakdown import Breakdown
    from evaluate.timing.ceiling import Limit

LONGEST_APART = timedelta(hours=24)
"""Longest time between a profile and a result: drivers, clocks, caps and neighbours change."""
JOB = ("platform", "framework", "model", "model_size")
WORK = ("precision", "sequence_length", "global_batch_size", "gradient_accumulation")
SETTINGS = {*WORK, *Layout._fields, *(trait.key for trait in TRAITS)} - {"profile"}
"""Settings that decide which operators run with which shapes, by their key in `training_config`."""
MOST_OPERATORS = 10
"""Operators with the largest differences in a report; a page of evaluate.trace has all."""
PERFETTO = "https://ui.perfetto.dev"
"""Opens traces of torch.profiler as they are, also compressed ones."""
Read = dict[Path, "tuple[Breakdown | None, list[str]]"]
"""Breakdowns with their remarks, by the file of the profile."""


@dataclass(frozen=True)
class Gap:
    """The profiled steps of both sides of a pair."""

    a: Breakdown | None
    """None if the trace cannot be used; a remark has the reason."""
    b: Breakdown | None
    remarks: tuple[str, ...]
    limits: tuple[Mapping[str, Limit], Mapping[str, Limit]] = ({}, {})
    """What the device of each side was measured to reach, by kind of time."""

    def rates(self) -> Iterator[tuple[str, str, Limit | None, Limit | None]]:
        """Yield kind, unit and the limits of both sides for each kind that was measured on one of them."""
        from evaluate.timing.ceiling import UNITS

        for kind, unit in UNITS.items():
            if any(kind in side for side in self.limits):
                yield kind, unit, self.limits[0].get(kind), self.limits[1].get(kind)


def gaps(judged: Sequence[Judged], profiles: Sequence[Profile], probes: Probes) -> tuple[Gap | None, ...]:
    """Return the gap of each pair; None for a pair that is not comparable or that lacks a profile of a side."""
    read: Read = {}
    return tuple(_gap(one, profiles, probes, read) for one in judged)


def as_json(gap: Gap) -> dict[str, Any]:
    """Return the value of `why` in compare.json: seconds of a step; `difference` is b less a."""
    a, b = gap.a, gap.b
    known = {name: side for name, side in (("a", a), ("b", b)) if side}
    rates = []
    for kind, unit, one, other in gap.rates():
        of_a = {"a": one and one.rate, "a_share": one and one.share}
        of_b = {"b": other and other.rate, "b_share": other and other.share}
        rates.append({"kind": kind, "unit": unit, **of_a, **of_b})
    return {
        "step_seconds": {"a": a and a.step_seconds, "b": b and b.step_seconds},
        **_divided(a, b),
        "communication_groups": {name: [asdict(row) for row in side.groups] for name, side in known.items()},
        "rates": rates,
        "remarks": list(gap.remarks),
        "traces": {name: "/".join(side.path.parts[-3:]) for name, side in known.items()},
    }


def _divided(a: Breakdown | None, b: Breakdown | None) -> dict[str, list[dict[str, Any]]]:
    """Return both steps by kind, phase and operator; empty lists unless both are known."""
    kinds: list[dict[str, Any]] = []
    phases: list[dict[str, Any]] = []
    operators: list[dict[str, Any]] = []
    if a and b:
        from evaluate.timing.ceiling import align

        for kind in KINDS:
            ours, theirs = a.kinds[kind], b.kinds[kind]
            kinds.append({"kind": kind, "a": ours, "b": theirs, "difference": theirs - ours})
        for phase in PHASES:
            phases.append({"phase": phase, "a": a.phases[phase], "b": b.phases[phase]})
        for one in align(a, b)[:MOST_OPERATORS]:
            operators.append(
                {
                    "kind": one.kind,
                    "phase": one.phase,
                    "operator": one.family,
                    "shapes": one.sizes,
                    "a": one.a and one.a.seconds,
                    "b": one.b and one.b.seconds,
                    "difference": one.difference_seconds,
                }
            )
    return {"kinds": kinds, "phases": phases, "operators": operators}


def _gap(judged: Judged, profiles: Sequence[Profile], probes: Probes, read: Read) -> Gap | None:
    if judged.word == NOT_COMPARABLE:
        return None
    chosen = [_nearest(profiles, results) for results in judged.pair.counted]
    sides: list[Breakdown | None] = []
    limits: list[Mapping[str, Limit]] = []
    remarks: list[str] = []
    for profile, (name, results) in zip(chosen, judged.pair.sides, strict=True):
        if profile is None or None in chosen:
            return None
        if profile.path not in read:  # a side may be in several pairs, and a trace takes seconds
            read[profile.path] = _breakdown(profile)
        breakdown, lines = read[profile.path]
        sides.append(breakdown)
        limits.append(_limits(breakdown, results[0], probes))
        remarks += [f"{name}: {line}" for line in lines]
    return Gap(sides[0], sides[1], tuple(remarks), (limits[0], limits[1]))


def _nearest(profiles: Sequence[Profile], results: Sequence[Result]) -> Profile | None:
    fitting = [profile for profile in profiles if any(_fits(profile, result) for result in results)]
    return measured_rate.nearest(results[0], fitting)


def _limits(breakdown: Breakdown | None, result: Result, probes: Probes) -> Mapping[str, Limit]:
    """Return what the device of a result was measured to reach, with the share that its step reached."""
    from evaluate.timing import ceiling

    return ceiling.limits(breakdown, probes.nearest(result), str(format_of(result)), measured_rate.sharing(result))


def _fits(profile: Profile, result: Result) -> bool:
    """Return whether a profile is of the job and the machine of a result, and was made near it in time."""
    config = result["training_config"]
    if any(getattr(profile, key) != result[key] for key in JOB):
        return False
    if any(profile.settings.get(key) != config.get(key) for key in SETTINGS):
        return False
    # two boards of one name differ too: a profile speaks for its own machine only
    device = (result["provenance"]["host"], result["gpu_info"]["device_name"])
    began = measured_rate.moment_of(result)
    is_near = began is not None and abs(profile.started - began) <= LONGEST_APART
    return is_near and (profile.host, profile.device_name) == device


def _breakdown(profile: Profile) -> tuple[Breakdown | None, list[str]]:
    """Return the breakdown of the trace of the first rank with remarks; None, with the reason, if it cannot be used."""
    from evaluate.timing.breakdown import of_file
    from evaluate.timing.stream import TraceError

    place = f"{FOLDER}/{profile.path.parent.name}"
    # one rank stands for all: ranks of data parallelism do the same work
    rank = min(profile.traces, default=None)
    if rank is None:
        return None, [f"{place} has no trace: {'; '.join(profile.reasons.values()) or 'reason unknown'}"]
    trace, path = profile.traces[rank], profile.trace_path(rank)
    name = f"{place}/{trace.file}"
    try:
        # a trace of another run under the same name would be divided as if it were this one
        if sha256_file(path) != trace.sha256:
            return None, [f"{name} is not the trace that {profile.path.name} names: its SHA-256 differs"]
        breakdown = of_file(path)
    except (DataError, OSError, TraceError) as error:
        return None, [f"{name} cannot be used: {str(error).replace(str(path), name)}"]
    others = "the others of its run are unknown"
    if profile.unprofiled_step_seconds is not None:
        others = f"the others {1e3 * profile.unprofiled_step_seconds:.4g} ms"
    step = f"a profiled step takes {1e3 * statistics.fmean(profile.profiled_step_seconds):.4g} ms, {others}"
    return breakdown, [f"from {place}: {step}; {breakdown.path.name} opens in {PERFETTO}", *breakdown.remarks]
