"""Notes on a group: observations that a reader needs before trusting its numbers. They are not verdicts.

The certificate (`evaluate/fairness/`) says in what two systems differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from evaluate.report.groups import ENOUGH_RUNS, Group
from evaluate.report.tables import plain
from utils.results.schema import Result

ENERGY_KINDS = {
    "gpu_counter": "GPU counter, not the wall",
    "gpu_power": "GPU power, integrated, not the wall",
    "cpu_rapl": "CPU RAPL, not the wall",
}
"""`method` of `energy_metrics`, in words."""


@lru_cache(maxsize=256)
def notes(group: Group) -> list[str]:
    """Return one line for each observation about `group`. Cached: several reports show them."""
    return [
        *few_runs(group),
        *_sources(group),
        *_licences(group),
        *_warnings(group),
    ]


def few_runs(group: Group) -> Iterator[str]:
    """Yield a line about the systems with fewer than ENOUGH_RUNS runs."""
    few = [f"{row.name} ({len(row.counted)})" for row in group.rows if 0 < len(row.counted) < ENOUGH_RUNS]
    if few:
        yield f"fewer than five runs: {', '.join(few)}; the spread between runs is hardly known"


def _sources(group: Group) -> Iterator[str]:
    """Yield a line if the energies of a group, or its memory figures, are of different kinds, such as a counter and
    integrated power."""
    for name, kind_of in (("energy", _kind_of_energy), ("memory", lambda result: result["memory_metrics"]["source"])):
        kinds: dict[str, dict[str, None]] = {}
        for row in group.rows:
            for entry in row.counted:
                if kind := kind_of(entry.result):
                    kinds.setdefault(kind, {})[row.name] = None
        if len(kinds) > 1:
            sides = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in kinds.items())
            yield plain(f"{name} is not comparable: {sides}")


def _kind_of_energy(result: Result) -> str | None:
    """Return the kind of the energy of a result; in results of earlier versions, which have no `method`, its source."""
    energy = result["energy_metrics"]
    kind: str | None = ENERGY_KINDS.get(energy.get("method") or "", energy["source"])
    return kind if energy["joules_per_token"] is not None else None


def _licences(group: Group) -> Iterator[str]:
    """Yield the licences of the data, of each name once; results of earlier versions record none."""
    found: dict[str, dict[str, None]] = {}
    for entry in (entry for row in group.rows for entry in row.counted):
        for name, licence in (entry.result["fingerprint"].get("licences") or {}).items():
            if licence:
                found.setdefault(name, {})[licence] = None
    if found:
        yield plain("licences: " + "; ".join(f"{name} {', '.join(known)}" for name, known in sorted(found.items())))


def _warnings(group: Group) -> Iterator[str]:
    for row in group.rows:
        runs: dict[str, list[int]] = {}
        for entry in row.counted:
            for warning in entry.findings.warnings:
                runs.setdefault(warning, []).append(entry.result["run"])
        for warning, numbers in runs.items():
            yield plain(f"{row.name}, run {', '.join(map(str, sorted(numbers)))}: {warning}")
