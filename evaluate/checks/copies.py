"""Rule of copies: no two runs have the same measurements to the last digit.

Equal losses are no copy: two runs of a deterministic platform with one seed have them. A copy whose samples somebody
changed is not found; docs/validation.md states what no check of a file can find.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path

from utils.results.schema import Result

ENOUGH_TIMES = 8
"""This many different step times of six digits are never measured twice."""

Found = Sequence[tuple[Path, Result]]


def copied_runs(found: Found) -> list[tuple[list[str], list[str]]]:
    """Return rejections and warnings of each result, in order, for measurements that are those of an earlier one.

    A copy of a whole file under another name is the same run and gives no line; `evaluate.report.groups` leaves it out.
    """
    lines: list[tuple[list[str], list[str]]] = [([], []) for _ in found]
    for place, path in _repeated(found, (_times(result) for _, result in found)):
        lines[place][0].append(f"step_times: those of {path.name} to the last digit; a copied run is no second run")
    for place, path in _repeated(found, (_joules(result) for _, result in found)):
        joules = found[place][1]["energy_metrics"]["joules"]
        lines[place][1].append(f"energy: the {joules:g} J of {path.name} to the last digit")
    return lines


def _repeated(found: Found, values: Iterable[Hashable | None]) -> Iterator[tuple[int, Path]]:
    """Yield each result whose value an earlier, different result has too, with the path of the first such result."""
    first: dict[Hashable, int] = {}
    for place, value in enumerate(values):
        if value is None:
            continue
        path, earlier = found[first.setdefault(value, place)]
        if earlier != found[place][1]:
            yield place, path


def _times(result: Result) -> tuple[float, ...] | None:
    times = tuple(result["step_times"])
    return times if len(set(times)) >= ENOUGH_TIMES else None


def _joules(result: Result) -> float | None:
    """Return the energy of a result; None if it is unknown, or rounded so far that two runs may have it."""
    joules: float | None = result["energy_metrics"]["joules"]
    return None if joules is None or joules == float(f"{joules:.5g}") else joules
