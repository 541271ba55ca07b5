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
SETTINGS = (
    *("precision", "sequence_length", "global_batch_size", "gradient_accumulation", *Layout._fields),
    *(trait.key for trait in TRAITS if trait.key != "profile"),
)
"""Settings that decide which operators run with which shapes, by their key in `training_config`."""
MOST_OPERATORS = 10
"""Operators with the largest differences in a report; a page of evaluate.trace has all."""
PERFETTO = "https://ui.perfetto.dev"
"""Opens traces of torch.profiler as they are, also compressed ones."""


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
    read: dict[Path, tuple[Breakdown | None, list[str]]] = {}
    return tuple(_gap(one, profiles, probes, read) for one in judged)


def as_json(gap: Gap) -> dict[str, Any]:
    """Return the value of `why` in compare.json: seconds of a step; `difference` is b less a."""
    from evaluate.timing.ceiling import align

    a, b = gap.a, gap.b
    return {
        "step_seconds": {"a": a and a.step_seconds, "b": b and b.step_seconds},
        "kinds": [
            {"kind": kind, "a": a.kinds[kind], "b": b.kinds[kind], "difference": b.kinds[kind] - a.kinds[kind]}
            for kind in KINDS
            if a and b
        ],
        "phases": [{"phase": phase, "a": a.phases[phase], "b": b.phases[phase]} for phase in PHASES if a and b],
        "communication_groups": {
            name: [asdict(row) for row in side.groups] for name, side in (("a", a), ("b", b)) if side
        },
        "operators": [
            {
                **{"kind": one.kind, "phase": one.phase, "operator": one.family, "shapes": one.sizes},
                **{"a": one.a and one.a.seconds, "b": one.b and one.b.seconds, "difference": one.difference_seconds},
            }
            for one in (align(a, b)[:MOST_OPERATORS] if a and b else ())
        ],
        "rates": [
            {"kind": kind, "unit": unit}
            | {"a": one and one.rate, "b": other and other.rate}
            | {"a_share": one and one.share, "b_share": other and other.share}
            for kind, unit, one, other in gap.rates()
        ],
        "remarks": list(gap.remarks),
        "traces": {name: "/".join(side.path.parts[-3:]) for name, side in (("a", a), ("b", b)) if side},
    }


def _gap(
    judged: Judged,
    profiles: Sequence[Profile],
    probes: Probes,
    read: dict[Path, tuple[Breakdown | None, list[str]]],
) -> Gap | None:
    if judged.word == NOT_COMPARABLE:
        return None
    chosen = [
        measured_rate.nearest(results[0], [one for one in profiles if any(_fits(one, result) for result in results)])
        for results in judged.pair.counted
    ]
    if not all(chosen):
        return None
    from evaluate.timing import ceiling

    remarks: list[str] = []
    sides = []
    for name, profile in zip((judged.pair.a_name, judged.pair.b_name), filter(None, chosen), strict=True):
        if profile.path not in read:
            read[profile.path] = _breakdown(profile)
        found, lines = read[profile.path]
        sides.append(found)
        remarks += [f"{name}: {line}" for line in lines]
    limits = [
        ceiling.limits(found, probes.nearest(results[0]), str(format_of(results[0])), measured_rate.sharing(results[0]))
        for found, results in zip(sides, judged.pair.counted, strict=True)
    ]
    return Gap(sides[0], sides[1], tuple(remarks), (limits[0], limits[1]))


def _fits(profile: Profile, result: Result) -> bool:
    began = measured_rate.moment_of(result)
    return (
        all(getattr(profile, key) == result[key] for key in JOB)
        and profile.host == result["provenance"]["host"]
        and profile.device_name == result["gpu_info"]["device_name"]
        and all(profile.settings.get(key) == result["training_config"].get(key) for key in SETTINGS)
        and began is not None
        and abs(profile.started - began) <= LONGEST_APART
    )


def _breakdown(profile: Profile) -> tuple[Breakdown | None, list[str]]:
    """Return the breakdown of the trace of the first rank with remarks; None, with the reason, if it cannot be used."""
    from evaluate.timing.breakdown import of_file
    from evaluate.timing.stream import TraceError

    place = f"{FOLDER}/{profile.path.parent.name}"
    rank = min(profile.traces, default=None)
    if rank is None:
        return None, [f"{place} has no trace: {'; '.join(profile.reasons.values()) or 'reason unknown'}"]
    path, where = profile.trace_path(rank), f"{place}/{profile.traces[rank].file}"
    try:
        if sha256_file(path) != profile.traces[rank].sha256:
            return None, [f"{where} is not the trace that {profile.path.name} names: its SHA-256 differs"]
        found = of_file(path)
    except (DataError, OSError, TraceError) as error:
        return None, [f"{where} cannot be used: {str(error).replace(str(path), where)}"]
    step = f"a profiled step takes {1e3 * statistics.fmean(profile.profiled_step_seconds):.4g} ms"
    unprofiled = profile.unprofiled_step_seconds
    other = "the others of its run are unknown" if unprofiled is None else f"the others {1e3 * unprofiled:.4g} ms"
    return found, [f"from {place}: {step}, {other}; {found.path.name} opens in {PERFETTO}", *found.remarks]
