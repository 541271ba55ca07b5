"""Floor, measured time and losses of one side of a pair, from its counted results, probes and profiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from evaluate.floor import fitting, floors, losses, measured
from evaluate.floor.floors import Floor, FloorError
from evaluate.floor.measured import Measured, ProfileUnusableError
from evaluate.floor.parts import NOT_USED, SideWhy
from evaluate.metrics import measured_rate, steady
from evaluate.metrics.measured_rate import Probes
from evaluate.metrics.profiles import Profiles
from evaluate.verdict import deciding, inference
from evaluate.verdict.inference import Estimate, Run
from evaluate.verdict.sentences import Judged
from utils.results.probe_file import Probe
from utils.results.profile_file import Profile
from utils.results.schema import Result

FAR_PERCENT = 3.0
"""Difference between the step of a profiled run and that of the others from which on it is said."""
ADVICE = "measure it on the day of the runs: python -m train.probe"


class RefusedError(ValueError):
    """A side has no floor; the message is the reason."""


@dataclass
class Evidence:
    """Probes and profiles of a comparison; each trace is read once."""

    probes: Probes = field(default_factory=Probes)
    profiles: Profiles = field(default_factory=Profiles)
    _read: dict[Path, Measured | str] = field(default_factory=dict)

    def probes_of(self, result: Result) -> list[Probe]:
        """Return the probes by operator of a result's machine, the nearest in time first."""
        began = measured_rate.started(result)
        found = [
            probe
            for probe in self.probes.found
            if probe.operators and (probe.platform, probe.host) == (result["platform"], result["provenance"]["host"])
        ]
        return sorted(found, key=lambda probe: _apart(probe.started, began))

    def measured(self, profile: Profile) -> Measured | str:
        """Return the measured time of a profile, or the reason why there is none."""
        if profile.path not in self._read:
            try:
                self._read[profile.path] = measured.of_profile(profile)
            except ProfileUnusableError as error:
                self._read[profile.path] = str(error)
        return self._read[profile.path]


@dataclass(frozen=True)
class Side:
    """A side with what the factors of a pair need."""

    why: SideWhy
    floor: Floor
    tokens: float
    """Tokens of a step."""
    gpus: int


def side_of(judged: Judged, place: int, evidence: Evidence) -> Side:
    """Return side `place` (0 for a, 1 for b) of a pair with an estimate; raise RefusedError if it has no floor."""
    assert judged.estimate is not None
    pair, results = judged.pair, judged.pair.counted[place]
    name = (pair.a_name, pair.b_name)[place]
    config = results[0]["training_config"]
    tokens, gpus = config["global_batch_size"] * config["sequence_length"], config["num_gpus"]
    tokens_of_rate = tokens if pair.is_of_jobs else tokens / gpus
    step, low, high = _step(judged.estimate, place, deciding.runs_of(pair)[place], tokens_of_rate)
    try:
        floor, probes = _floor(results, evidence)
    except (FloorError, RefusedError) as error:
        raise RefusedError(f"{name}: {error}") from error
    if floor.seconds > step:
        raise RefusedError(
            f"{name}: the floor of {losses.duration(floor.seconds)} (+-{floor.spread_percent:.1f} %) is above the "
            f"measured step of {losses.duration(step)}, so the probe or the results are wrong; measure both again"
        )
    found, remarks = _profiled(results, evidence)
    lost = losses.whole(step - floor.seconds)
    if found is not None:
        lost = losses.by_kind(found.by_kind, floor.by_kind, floor.calls, found.trace, _data_wait(results))
        remarks += [*found.remarks, *_other_step(found, step)]
    why = SideWhy(
        name=name,
        step_seconds=step,
        step_low=low,
        step_high=high,
        floor_seconds=floor.seconds,
        floor_spread_percent=floor.spread_percent,
        floor_by_kind=floor.by_kind,
        measured_by_kind=None if found is None else found.by_kind,
        losses=lost,
        probe=" and ".join(dict.fromkeys(probe.path.name for probe in probes)),
        profile="" if found is None else found.place,
        remarks=(*floor.remarks, *remarks),
        profiled_by_kind=None if found is None else found.profiled_by_kind,
        trace=None if found is None else found.trace,
    )
    return Side(why, floor, tokens, gpus)


def _step(
    estimate: Estimate, place: int, runs: Sequence[Run], tokens: float
) -> tuple[float, float | None, float | None]:
    """Return the step of a side with its interval: `tokens` over the geometric mean of its rates, as in the verdict."""
    machines: dict[str, list[float]] = {}
    for run in runs:
        machines.setdefault(run.machine, []).append(run.log_throughput)
    log = statistics.fmean(map(statistics.fmean, machines.values()))
    step, spread = tokens / math.exp(log), estimate.spreads[place]
    if spread is None or place in dict(estimate.sides_without_spread):
        return step, None, None
    from scipy.special import stdtrit  # 0.2 s, which a comparison without a probe need not spend

    half = float(stdtrit(spread.degrees, 1 - inference.INTERVAL_LEVEL / 2)) * math.sqrt(spread.variance)
    return step, step * math.exp(-half), step * math.exp(half)


def _floor(results: Sequence[Result], evidence: Evidence) -> tuple[Floor, list[Probe]]:
    """Return the floor of a side and the probe of each of its machines; raise an error with the first reason."""
    by_host: dict[str, list[Result]] = {}
    for result in results:
        by_host.setdefault(str(result["provenance"]["host"]), []).append(result)
    found, probes = [], []
    for host, of_host in by_host.items():
        floor, probe = _floor_of_machine(host, of_host, evidence)
        found.append(floor)
        probes.append(probe)
    return floors.mean(found), probes


def _floor_of_machine(host: str, results: Sequence[Result], evidence: Evidence) -> tuple[Floor, Probe]:
    """Return the floor by the nearest probe that fits all results of a machine."""
    candidates = evidence.probes_of(results[0])
    reasons = []
    for probe in candidates:
        reason = next((why for result in results if (why := fitting.why_not_probe(probe, result))), "")
        if not reason:
            job, reason = fitting.job_of(probe, results[0])
            if job is not None:
                nodes = len(results[0]["provenance"].get("hosts") or [host])
                return floors.of_job(probe, job, nodes), probe
        reasons.append(reason)
    raise RefusedError(reasons[0] if reasons else f"there is no probe by operator of machine {host}; {ADVICE}")


def _profiled(results: Sequence[Result], evidence: Evidence) -> tuple[Measured | None, list[str]]:
    """Return the measured time by the nearest profile that fits a result, and remarks on those that do not.

    Profiles of other jobs are not mentioned, those of this job that cannot be used are.
    """
    remarks: list[str] = []
    began = measured_rate.started(results[0])
    for profile in sorted(evidence.profiles.found, key=lambda one: _apart(one.started, began)):
        why = [fitting.why_not_profile(profile, result) for result in results]
        if all(why):
            if _is_of_job(profile, results[0]):
                remarks.append(f"{NOT_USED}{why[0]}")
            continue
        found = evidence.measured(profile)
        if isinstance(found, Measured):
            return found, remarks
        remarks.append(f"{NOT_USED}{found}")
    return None, [*remarks, *(f"{NOT_USED}{error}" for error in evidence.profiles.errors)]


def _is_of_job(profile: Profile, result: Result) -> bool:
    keys = ("platform", "framework", "model", "model_size")
    is_same_job = all(getattr(profile, key) == result[key] for key in keys)
    return is_same_job and profile.host == result["provenance"]["host"]


def _other_step(found: Measured, step: float) -> Iterator[str]:
    if 100 * abs(found.step_seconds / step - 1) > FAR_PERCENT:
        yield (
            f"{found.place}: a step of the profiled run takes {losses.duration(found.step_seconds)}, of the compared "
            f"runs {losses.duration(step)}; the measured kinds are of the profiled run"
        )


def _data_wait(results: Sequence[Result]) -> float | None:
    """Return the mean time of a steady step in which a job waits for data; None if a run does not know it."""
    found: list[float] = []
    for result in results:
        part, waits = steady.of_result(result), result["data_wait_seconds"]
        if part is None or not waits or any(wait is None for wait in waits):
            return None
        found.append(statistics.fmean(waits[part.first :]))
    return statistics.fmean(found) if found else None


def _apart(when: datetime, began: datetime | None) -> timedelta:
    return abs(when - began) if began else timedelta()
