"""The figures of a sweep: for each point, speed and memory of its counted results, or the reason for none."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.checks.entries import Entry, load_results
from evaluate.checks.recorded import machine_of
from evaluate.metrics.throughput import tokens_per_second_per_gpu
from utils.results import sweep_file
from utils.results.schema import Result
from utils.results.store import ResultError
from utils.results.sweep_file import Point, Sweep
from utils.settings.keys import KEYS

BAND = 0.03
"""Points less than this share slower than the fastest one count as equally fast, as in a verdict."""
TUNABLE = ("layout", "means")
"""Parts of a certificate whose settings may be tuned: they change how the work is done, not the work."""
_IDENTITY = {"FRAMEWORK": "framework", "MODEL": "model", "MODEL_SIZE": "model_size"}


@dataclass(frozen=True)
class Measured:
    """One point with the figures of its counted results."""

    point: Point
    rates: tuple[float, ...]
    """Tokens per second and GPU (rank on a CPU) over the steady steps, one for each counted run."""
    memory_gb: float | None
    """Largest peak of allocated memory of any run, 1e9 bytes; None if no run measured it."""
    results: tuple[Result, ...]
    why: str
    """Reason why there is no rate; empty if there is one."""

    @property
    def rate(self) -> float | None:
        """The geometric mean of the runs, as in a verdict; None without a counted run."""
        return statistics.geometric_mean(self.rates) if self.rates else None

    @property
    def spread(self) -> float | None:
        """Largest minus smallest run over their mean; None for fewer than two runs."""
        mean = self.rate
        return (max(self.rates) - min(self.rates)) / mean if mean and len(self.rates) > 1 else None


@dataclass(frozen=True)
class Best:
    """The points of one work, and the one whose settings are the best."""

    work: dict[str, str]
    """Values of the axes that are not tuned; the same for all these points."""
    measured: tuple[Measured, ...]
    chosen: Measured | None
    why: str
    """Reason of the choice, or of none."""


def measure(sweep: Sweep, output_dir: Path) -> list[Measured]:
    """Return the figures of every point, in the sweep's order; results that break a rule do not count."""
    return [_of_point(point, output_dir) for point in sweep.points]


def best_of(sweep: Sweep, measured: Sequence[Measured]) -> list[Best]:
    """Return the best settings for each work: of the points within BAND of the fastest, the one with least memory."""
    groups: dict[tuple[str, ...], list[Measured]] = {}
    work = [key for key in sweep.axes if not is_tunable(key)]
    for one in measured:
        groups.setdefault(tuple(one.point.settings[key] for key in work), []).append(one)
    return [_best(dict(zip(work, values, strict=True)), tuple(group)) for values, group in groups.items()]


def is_tunable(key: str) -> bool:
    """Return True if a setting changes how the work is done, False if it changes the work or is part of its name."""
    place = KEYS[key].in_results
    return place is not None and place.part in TUNABLE


def _of_point(point: Point, output_dir: Path) -> Measured:
    if point.state in (sweep_file.DOES_NOT_FIT, sweep_file.IMPOSSIBLE):
        return Measured(point, (), None, (), f"{point.state}: {point.reason}")
    folder = output_dir / point.label
    if not folder.is_dir():
        return Measured(point, (), None, (), "not run yet")
    try:
        entries = load_results([folder]).entries
    except ResultError as error:
        return Measured(point, (), None, (), str(error))
    counted = [entry for entry in entries if entry.is_counted and not _differences(entry.result, point)]
    rates = tuple(rate for entry in counted if (rate := tokens_per_second_per_gpu(entry.result)) is not None)
    peaks = [entry.result["memory_metrics"]["peak_memory_allocated_gb"] for entry in counted]
    known = [peak for peak in peaks if peak is not None]
    why = "" if rates else _reasons(entries, point)
    return Measured(point, rates, max(known, default=None), tuple(entry.result for entry in counted), why)


def _reasons(entries: Sequence[Entry], point: Point) -> str:
    reasons = Counter(entry.why_not_counted or _differences(entry.result, point) for entry in entries)
    return "; ".join(f"{reason} ({count} runs)" if count > 1 else reason for reason, count in reasons.items())


def _differences(result: Result, point: Point) -> str:
    """Return what in a result contradicts the settings of its point; empty if nothing does."""
    found = [] if result["label"] == point.label else [f"label {result['label']!r}"]
    for key, text in point.settings.items():
        place = KEYS[key].in_results
        if key in _IDENTITY:
            value: Any = result[_IDENTITY[key]]
            wanted: Any = text
        elif place is not None:
            value, wanted = _config(result).get(place.key), _parsed(key, text)
        else:
            continue
        if wanted is not None and value != wanted:
            found.append(f"{key} is {value!r}")
    return f"the result is not of this point: {', '.join(found)}" if found else ""


def _config(result: Result) -> Mapping[str, Any]:
    config: Mapping[str, Any] = result["training_config"]
    return config


def _parsed(key: str, text: str) -> Any:
    """Return the value of a setting; None for one that the launcher replaces, such as `auto`."""
    value = KEYS[key].parse(text)
    return None if value in (None, "auto") else value


def _best(work: dict[str, str], measured: tuple[Measured, ...]) -> Best:
    timed = [(rate, one) for one in measured if (rate := one.rate) is not None]
    if not timed:
        return Best(work, measured, None, "no point has a counted result")
    machines = {_machine(result) for _, one in timed for result in one.results}
    if len(machines) > 1:
        named = "; ".join(sorted(f"{device} on {host}" for device, host in machines))
        return Best(work, measured, None, f"the results are of several machines: {named}")
    near = [(rate, one) for rate, one in timed if rate >= (1 - BAND) * max(rate for rate, _ in timed)]
    _, chosen = min(near, key=lambda pair: (pair[1].memory_gb is None, pair[1].memory_gb, -pair[0]))
    why = "the fastest" if len(near) == 1 else f"least memory of {len(near)} points within {BAND:.0%} of the fastest"
    if (runs := len(chosen.rates)) == 1:
        return Best(work, measured, chosen, f"{why}; one run: run it and its neighbours again with RUNS=auto")
    return Best(work, measured, chosen, f"{why}; {runs} runs")


def _machine(result: Result) -> tuple[str, str]:
    return str(result["gpu_info"]["device_name"]), machine_of(result)
