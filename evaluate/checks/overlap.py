"""Rule of shared devices: two runs on one machine do not overlap in time, unless they had different GPUs.

Every attempt counts, also one that failed: it held the GPUs all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from evaluate.checks.board import VISIBLE
from evaluate.checks.recorded import interval, machines
from utils.results.schema import Result

SLACK = timedelta(seconds=2)
"""Times are whole seconds, and one run may end in the second in which the next one starts."""

Found = Sequence[tuple[Path, Result]]


def overlapping_runs(found: Found) -> list[tuple[list[str], list[str]]]:
    """Return rejections and warnings of each result, in order, for runs that shared a machine's devices in time."""
    lines: list[tuple[list[str], list[str]]] = [([], []) for _ in found]
    for a, b in _overlaps(found):
        (path_a, one), (path_b, other) = found[a], found[b]
        if one == other or _have_other_gpus(one, other):
            continue
        is_certain = one["platform"] != "cpu" and not _could_be_apart(one, other)
        host = one["provenance"]["host"]
        for place, path in ((a, path_b), (b, path_a)):
            text = f"started_utc: overlaps {path.name} in time on {host}; each slowed the other down"
            target = lines[place][0 if is_certain else 1]
            if not target:
                target.append(text)
    return lines


def _overlaps(found: Found) -> Iterator[tuple[int, int]]:
    """Yield the pairs that overlap on a machine: each run with the one that ended last of those that started before."""
    by_machine: dict[tuple[Any, ...], list[tuple[datetime, datetime, int]]] = {}
    for place, (_, result) in enumerate(found):
        times = interval(result)
        if times is None or times[0] >= times[1]:
            continue
        for host in machines(result):
            machine = (host, result["platform"], result["gpu_info"]["device_name"])
            by_machine.setdefault(machine, []).append((*times, place))
    for runs in by_machine.values():
        runs.sort()
        last = runs[0]
        for run in runs[1:]:
            if run[0] + SLACK < last[1] and run[0] + SLACK < run[1] and last[2] != run[2]:
                yield last[2], run[2]
            last = max(last, run, key=lambda one: one[1])


def _have_other_gpus(a: Result, b: Result) -> bool:
    """Return whether both runs name their GPUs and share none."""
    sets = [_gpus(one) for one in (a, b)]
    return None not in sets and not set(sets[0] or ()) & set(sets[1] or ())


def _gpus(result: Result) -> tuple[str, ...] | None:
    environment = result["provenance"]["environment"] or {}
    named = [str(environment[name]) for name in VISIBLE if environment.get(name)]
    return tuple(part.strip() for part in named[0].split(",")) if named else None


def _could_be_apart(a: Result, b: Result) -> bool:
    """Return whether the machine has enough GPUs for both runs."""
    counts = [(one.get("conditions") or {}).get("gpu_count") for one in (a, b)]
    used = sum(one["training_config"]["num_gpus"] or 0 for one in (a, b))
    return None not in counts and used <= min(count for count in counts if count is not None)
