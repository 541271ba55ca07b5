"""Rule of copies: no two runs have the same measurements, or measurements that differ by a scale or by jitter only.

Step times of two real runs differ by their noise, in every step anew. So the changes from one step to the next are
unrelated between two runs; in a copy they have the same order, also after a factor or a jitter far below the noise.
The loss says nothing here: two runs of a deterministic platform with one seed have equal losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from utils.results.schema import Result

ENOUGH_TIMES = 8
"""This many different step times of six digits are never measured twice."""
NEARLY_EQUAL = 1e-4
"""Relative. Two runs of the steadiest machine differ by more in at least one of ENOUGH_TIMES steps."""
ENOUGH_CHANGES = 20
SAME_ORDER = 0.98
"""Rank correlation of the changes between steps. By chance, 20 pairs reach 0.8 once in 50,000; a pattern of up to six
lengths of steps that both runs repeat reaches 1 - 1/36 = 0.972."""
SAME_SPEED = 0.01
BLOCK = 512
"""Number of runs that are correlated with all others at once; bounds the memory."""

Found = Sequence[tuple[Path, Result]]


def copied_runs(found: Found) -> list[tuple[list[str], list[str]]]:
    """Return rejections and warnings of each result, in order, for measurements that are those of an earlier one.

    A copy of a whole file under another name is the same run and gives no line; `evaluate.report.groups` leaves it out.
    """
    lines: list[tuple[list[str], list[str]]] = [([], []) for _ in found]
    usable = [place for place, (_, one) in enumerate(found) if _is_usable(one["step_times"])]
    for first, second in sorted({*_nearly_equal(found, usable), *_in_one_order(found, usable)}):
        if lines[second][0] or _is_one_run(found[first][1], found[second][1]):
            continue
        text, is_certain = _account(found[first], found[second])
        lines[second][0 if is_certain else 1].append(text)
    for place, joules in _equal_energy(found):
        lines[place][1].append(joules)
    return lines


def _is_usable(times: Sequence[float]) -> bool:
    return len(set(times)) >= ENOUGH_TIMES and min(times) > 0


def _is_one_run(a: Result, b: Result) -> bool:
    return bool(a == b)


def _account(before: tuple[Path, Result], copy: tuple[Path, Result]) -> tuple[str, bool]:
    """Return the finding in words, and whether it is certain enough to reject the later run."""
    (path, a), (_, b) = before, copy
    if a["step_times"] == b["step_times"]:
        return f"step_times: those of {path.name} to the last digit; a copied run is no second run", True
    ratio = math.fsum(b["step_times"]) / math.fsum(a["step_times"])
    if abs(ratio - 1) <= SAME_SPEED:
        return f"step_times: those of {path.name}, apart from jitter; a copied run is no second run", True
    text = f"step_times: those of {path.name} times {ratio:.3g}, step by step; a copied run is no second run"
    return text, _side(a) == _side(b)


def _side(result: Result) -> tuple[Any, ...]:
    return result["platform"], result["framework"], result["provenance"]["host"]


def _nearly_equal(found: Found, usable: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of runs whose step times agree within NEARLY_EQUAL in every step.

    The sums of such runs agree too, so that each run is compared with its neighbours in the order of the sums.
    """
    logs = {place: np.log(found[place][1]["step_times"]) for place in usable}
    order = sorted(usable, key=lambda place: (len(logs[place]), float(logs[place].mean())))
    for rank, place in enumerate(order):
        mean = float(logs[place].mean())
        for other in order[rank + 1 :]:
            is_near = len(logs[other]) == len(logs[place]) and float(logs[other].mean()) - mean <= NEARLY_EQUAL
            if not is_near:
                break
            if float(np.abs(logs[place] - logs[other]).max()) <= NEARLY_EQUAL:
                yield min(place, other), max(place, other)
                if found[place][1]["step_times"] == found[other][1]["step_times"]:
                    break  # the other one is compared with the rest in its turn


def _in_one_order(found: Found, usable: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of runs of equal length whose changes from step to step have the same order."""
    by_length = sorted(usable, key=lambda place: len(found[place][1]["step_times"]))
    for length, group in groupby(by_length, key=lambda place: len(found[place][1]["step_times"])):
        places = sorted(group)
        first = max(3, length // 10)
        if length - first - 1 < ENOUGH_CHANGES or len(places) < 2:
            continue
        ranks = _ranked_changes(np.log([found[place][1]["step_times"][first:] for place in places]))
        for start in range(0, len(places), BLOCK):
            alike = np.argwhere(ranks[start : start + BLOCK] @ ranks.T >= SAME_ORDER)
            yield from ((places[start + a], places[b]) for a, b in alike if start + a < b)


def _ranked_changes(logs: Any) -> Any:
    """Return the ranks of the changes between steps, a row a run, of mean 0 and length 1: their product is Spearman's
    correlation. A row of equal changes becomes 0, which is correlated with nothing."""
    changes = np.diff(logs, axis=1)
    ranks = changes.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable").astype(np.float64)
    has_order = np.array([len(np.unique(row)) >= ENOUGH_CHANGES // 2 for row in changes])
    ranks -= ranks.mean(axis=1, keepdims=True)
    return ranks / np.linalg.norm(ranks, axis=1, keepdims=True) * has_order[:, None]


def _equal_energy(found: Found) -> Iterator[tuple[int, str]]:
    """Yield the results whose energy is that of an earlier run to the last of many digits."""
    first: dict[float, int] = {}
    for place, (_, result) in enumerate(found):
        joules = result["energy_metrics"]["joules"]
        if joules is None or joules == float(f"{joules:.5g}"):
            continue  # a rounded number may be that of two runs
        before = first.setdefault(joules, place)
        if before != place and result != found[before][1]:
            yield place, f"energy: the {joules:g} J of {found[before][0].name} to the last digit"
