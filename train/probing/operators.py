"""Every distinct operator of the jobs, measured: which calls there are, how much each weighs, and what it took.

The time is shared by weight, which is calls times seconds over the seconds of the job's step, estimated from the rates
and the bandwidth that were measured before. Calls whose tensors do not fit together are measured in groups.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from train.probing import replay, rounds
from train.probing.inputs import UnrepeatableError, bytes_of
from train.probing.jobs import Rehearsed
from train.probing.medians import Median
from train.probing.place import Place
from train.probing.rates import short
from train.probing.replay import Replay, first_line
from train.probing.rounds import Measured

IDENTITY = ("name", "phase", "kind", "flops", "bytes")
CALL_SECONDS = 5e-6
"""Estimate of what a call costs besides its work."""
SHORTEST_SECONDS = 1e-9
"""Below the resolution of every clock."""
SHARE_OF_MEMORY = {"cpu": 0.2, "cuda": 0.6}
"""Part of the free memory that the tensors of a group may take: results and displaced caches need the rest."""
COPY_BYTES = 2**30
"""Size above which a copy in place of an operator moves a part only."""


@dataclass(frozen=True)
class Ceilings:
    """Measured limits of the device, for estimates and for what is not repeated."""

    tflops: Mapping[str, float]
    """Best rate by precision."""
    gb_per_second: float

    def seconds(self, row: Mapping[str, Any]) -> float:
        """Return the least seconds of one call of a rehearsal's row."""
        return max(self.compute_seconds(row), row["bytes"] / (self.gb_per_second * 1e9)) + CALL_SECONDS

    def compute_seconds(self, row: Mapping[str, Any]) -> float:
        """Return the seconds of its floating-point operations at the best rate of its precision."""
        rate = self.tflops.get(precision_of(row["dtypes"])) or max(self.tflops.values(), default=1.0)
        return row["flops"] / (rate * 1e12)


@dataclass
class Distinct:
    """One distinct operator over all jobs, as the rehearsal describes it, with its calls in a step of each job."""

    row: dict[str, Any]
    counts: dict[int, float] = field(default_factory=dict)
    """Calls in a step by the number of the job."""


@dataclass(frozen=True)
class Timing:
    """Measured times of a call, without its tensors."""

    method: str
    reason: str
    share: float
    """Part of the bytes that a copy in place of the call moved."""
    rounds: int
    medians: dict[str, tuple[Median, Median]]
    """By variant, with a cold and with a warm cache."""


def precision_of(dtypes: Sequence[str]) -> str:
    """Return the precision of the probe's rates for the dtypes of an operator."""
    if any(dtype.startswith("float8") for dtype in dtypes):
        return "fp8"
    return "bf16" if any(dtype in ("bfloat16", "float16") for dtype in dtypes) else "fp32"


def distinct(jobs: Sequence[Rehearsed]) -> list[Distinct]:
    """Return the distinct operators of all jobs, in the order of the rehearsals."""
    found: dict[tuple[Any, ...], Distinct] = {}
    for number, job in enumerate(jobs):
        for row in job.operators:
            one = found.setdefault(_identity(row), Distinct(row))
            one.counts[number] = one.counts.get(number, 0.0) + row["count"]
    return list(found.values())


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(row[key] for key in IDENTITY), *(json.dumps(row[key]) for key in ("shapes", "dtypes", "call")))


def weights(operators: Sequence[Distinct], seconds: Sequence[float]) -> list[float]:
    """Return for each operator the largest share that it has of the seconds of a job's step."""
    totals: dict[int, float] = {}
    for one, each in zip(operators, seconds, strict=True):
        for job, count in one.counts.items():
            totals[job] = totals.get(job, 0.0) + count * each
    return [
        max((count * each / totals[job] for job, count in one.counts.items() if totals[job]), default=0.0)
        for one, each in zip(operators, seconds, strict=True)
    ]


def measure(
    operators: Sequence[Distinct],
    place: Place,
    ceilings: Ceilings,
    seconds: float,
    advance: Callable[[float], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Return the rows of the file for all operators, measured in about `seconds`.

    Calls that differ only in phase or kind are measured once.
    """
    shares = weights(operators, [ceilings.seconds(one.row) for one in operators])
    by_call: dict[str, list[int]] = {}
    for number, one in enumerate(operators):
        call = one.row["call"]
        key = json.dumps(call) if call else f"{one.row['bytes']} {one.row['flops']} {one.row['kind']}"
        by_call.setdefault(key, []).append(number)
    found: list[dict[str, Any] | None] = [None] * len(operators)
    calls = list(by_call.values())
    heavy = [sum(shares[number] for number in numbers) for numbers in calls]
    for group in _groups([operators[numbers[0]].row for numbers in calls], place):
        part = sum(heavy[one] for one in group) / (sum(heavy) or 1.0)
        rows = [(operators[calls[one][0]].row, heavy[one]) for one in group]
        # of the results nothing is kept that holds a tensor: the next group needs the memory
        for call_number, timing in zip(group, _timings(rows, place, seconds * part, advance), strict=True):
            for number in calls[call_number]:
                found[number] = _row(operators[number].row, timing, ceilings)
        place.release()
    return [row for row in found if row is not None]


def _timings(
    rows: Sequence[tuple[Mapping[str, Any], float]], place: Place, seconds: float, advance: Callable[[float], None]
) -> list[Timing]:
    """Measure calls, each with its weight, together; where memory does not last, in halves, a single one by a copy."""
    try:
        return _together([(_replay(row, place), weight) for row, weight in rows], place, seconds, advance)
    except RuntimeError as error:  # of the device: memory, mostly
        reason = first_line(error)
    place.release()
    if len(rows) == 1:
        row, weight = rows[0]
        return _together([(_copy(row, place, reason), weight)], place, seconds, advance)
    middle = len(rows) // 2
    return [
        *_timings(rows[:middle], place, seconds / 2, advance),
        *_timings(rows[middle:], place, seconds / 2, advance),
    ]


def _together(
    calls: Sequence[tuple[Replay, float]], place: Place, seconds: float, advance: Callable[[float], None]
) -> list[Timing]:
    measured = [Measured(call, weight) for call, weight in calls]
    rounds.measure(measured, place, seconds, advance)
    return [
        Timing(one.replay.method, one.replay.reason, one.replay.share, one.rounds, one.medians()) for one in measured
    ]


def _groups(rows: Sequence[Mapping[str, Any]], place: Place) -> Iterator[list[int]]:
    """Yield the numbers of calls whose tensors fit into memory together."""
    limit = SHARE_OF_MEMORY[place.device.type] * place.free_bytes
    group: list[int] = []
    taken = 0.0
    for number, row in enumerate(rows):
        needed = memory_of(row)
        if group and taken + needed > limit:
            yield group
            group, taken = [], 0.0
        group.append(number)
        taken += needed
    if group:
        yield group


def memory_of(row: Mapping[str, Any]) -> float:
    """Return the memory that a row's call needs at most: arguments, kept values, other layouts and results."""
    size = float(bytes_of(row["call"]) if row["call"] else min(row["bytes"], COPY_BYTES))
    return 3 * size if row["kind"] in ("matmul", "attention") else 2 * size + row["bytes"] / 4


def _replay(row: Mapping[str, Any], place: Place) -> Replay:
    """Return the row's call as a replay, or a copy in its place."""
    free, needed = place.free_bytes, memory_of(row)
    try:
        if needed > 0.8 * free:
            raise UnrepeatableError(f"needs {needed / 1e9:.1f} GB of memory, of which {free / 1e9:.1f} GB are free")
        return replay.of_call(row["call"], row["kind"], place.device)
    except UnrepeatableError as error:
        reason = str(error)
    place.release()
    return _copy(row, place, reason)


def _copy(row: Mapping[str, Any], place: Place, reason: str) -> Replay:
    return replay.as_copy(row["bytes"], min(COPY_BYTES, 0.2 * place.free_bytes), reason, place.device)


def _row(row: Mapping[str, Any], timing: Timing, ceilings: Ceilings) -> dict[str, Any]:
    """Return an operator of the file (utils/results/probe_operators.py)."""
    medians, share = timing.medians, timing.share
    fastest = min(medians, key=lambda name: medians[name][0].seconds)
    least = ceilings.compute_seconds(row) if timing.method == replay.BANDWIDTH else 0.0

    def seconds(found: Median) -> float:
        return float(f"{max(found.seconds / share, least, SHORTEST_SECONDS):.6g}")

    return {
        **{key: row[key] for key in ("name", "phase", "kind", "flops", "bytes")},
        **{key: json.dumps(row[key]) for key in ("shapes", "dtypes")},
        "seconds": seconds(medians[fastest][0]),
        "warm_seconds": min(seconds(warm) for _, warm in medians.values()),
        "spread_percent": short(medians[fastest][0].spread_percent),
        "method": timing.method,
        "reason": timing.reason,
        "variants": {name: seconds(cold) for name, (cold, _) in medians.items()},
        "intervals": {
            name: [[short(one.low / share), short(one.high / share)] for one in both] for name, both in medians.items()
        },
        "rounds": timing.rounds,
    }
