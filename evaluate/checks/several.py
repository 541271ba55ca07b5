"""Rules on several results: no two have the same measurements, and no two shared the GPUs of a machine in time.

Equal losses are no copy: two runs of a deterministic platform with one seed have them. A copy whose samples somebody
changed is not found; docs/compare.md states what no check of a file can find. Every attempt counts for a machine,
also one that failed: it held the GPUs all the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from operator import itemgetter
from pathlib import Path

from evaluate.checks.board import VISIBLE
from evaluate.checks.recorded import grouped, interval, machines
from utils.results.schema import Result

ENOUGH_TIMES = 8
"""This many different step times of six digits are never measured twice."""
SLACK = timedelta(seconds=2)
"""Times are whole seconds, and one run may end in the second in which the next one starts."""

Found = Sequence[tuple[Path, Result]]
Line = tuple[int, bool, str]
"""Place of a result, whether the line rejects it, and the line; the first line of each kind counts."""


def copied_runs(found: Found) -> Iterator[Line]:
    """Yield the lines on measurements that are those of an earlier result.

    A copy of a whole file under another name is the same run and gives no line; `evaluate.report.groups` leaves it out.
    """
    times = [tuple(result["step_times"]) for _, result in found]
    for place, path in _repeated(found, (one if len(set(one)) >= ENOUGH_TIMES else None for one in times)):
        yield place, True, f"step_times: those of {path.name} to the last digit; a copied run is no second run"
    joules = [result["energy_metrics"]["joules"] for _, result in found]
    for place, path in _repeated(found, (None if one is None or one == float(f"{one:.5g}") else one for one in joules)):
        yield place, False, f"energy: the {joules[place]:g} J of {path.name} to the last digit"


def overlapping_runs(found: Found) -> Iterator[Line]:
    """Yield the lines on runs that shared a machine's devices in time."""
    for a, b in _overlaps(found):
        (path_a, one), (path_b, other) = found[a], found[b]
        if one != other and not _have_other_gpus(one, other):
            is_certain = one["platform"] != "cpu" and not _could_be_apart(one, other)
            for place, path in ((a, path_b), (b, path_a)):
                where = f"{path.name} in time on {one['provenance']['host']}"
                yield place, is_certain, f"started_utc: overlaps {where}; each slowed the other down"


def _repeated(found: Found, values: Iterable[Hashable | None]) -> Iterator[tuple[int, Path]]:
    """Yield each result whose value an earlier, different result has too, with the path of the first such result; None
    is a value that two results may have."""
    first: dict[Hashable, int] = {}
    for place, value in enumerate(values):
        path, earlier = found[first.setdefault(value, place)]
        if value is not None and earlier != found[place][1]:
            yield place, path


def _overlaps(found: Found) -> Iterator[tuple[int, int]]:
    """Yield the pairs that overlap on a machine: each run with the one that ended last of those that started before."""
    spans = [
        (host, result["platform"], result["gpu_info"]["device_name"], *times, place)
        for place, (_, result) in enumerate(found)
        for host in machines(result)
        if (times := interval(result)) and times[0] < times[1]
    ]
    for of_machine in grouped(spans, itemgetter(0, 1, 2)).values():
        runs = sorted(span[3:] for span in of_machine)
        last = runs[0]
        for run in runs[1:]:
            if run[0] + SLACK < last[1] and run[0] + SLACK < run[1]:
                yield last[2], run[2]
            last = max(last, run, key=lambda one: one[1])


def _have_other_gpus(a: Result, b: Result) -> bool:
    """Return whether both runs name their GPUs and share none."""
    of_both = [one["provenance"]["environment"] or {} for one in (a, b)]
    named = [next((str(one[name]) for name in VISIBLE if one.get(name)), "") for one in of_both]
    sets = [{part.strip() for part in text.split(",")} for text in named]
    return all(named) and sets[0].isdisjoint(sets[1])


def _could_be_apart(a: Result, b: Result) -> bool:
    """Return whether the machine has enough GPUs for both runs."""
    counts = [(one.get("conditions") or {}).get("gpu_count") for one in (a, b)]
    used = sum(one["training_config"]["num_gpus"] or 0 for one in (a, b))
    return None not in counts and used <= min(count for count in counts if count is not None)
