"""Series of comparable runs in the order of their start: one machine, one framework, one set of settings.

Two runs share a series if they share the table of a comparison and the row in it (evaluate/report/groups.py: model,
size, method, sequence length, global batch, precision, data; platform, framework, device, layout, label, host), every
setting of config.env that is in results, and the kind of record (the suite's own, or a log). Not part of it: the seed,
because losses are compared seed by seed, and where the data lay. Versions are not part of it: their effect is what a
history shows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped, machine_of, moment
from evaluate.metrics.figures import Figure
from evaluate.metrics.metrics import last_loss, utilisation
from evaluate.metrics.throughput import tokens_per_second_per_gpu
from evaluate.report.tables import plain
from evaluate.timeline.states import state_of, versions_of
from evaluate.verdict.side_names import device_name, telling
from utils.results.schema import Result
from utils.settings.keys import in_results

JOINABLE = ("host", "label")
"""Properties that `join` takes out of the key of a series."""
NOT_PART = ("seed", "dataset", "samples", "allow_repeat")
"""Settings that two runs of a series may differ in; the data are compared by their hash."""
OLDER = {"layers": "auto"}
"""Value that ran in results of before the setting existed, for settings that the schema does not require."""
NO_START = "no start time on record, so it has no place in the order of time"
NO_STEADY_STEP = "no steady step, so no throughput"
UNKNOWN = "versions unknown"

Key = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """One counted run of a series."""

    entry: Entry
    started: datetime
    """In UTC."""
    rate: float
    """Tokens a second and GPU over the steady steps."""

    @property
    def result(self) -> Result:
        """The result of the run."""
        return self.entry.result

    @cached_property
    def mfu(self) -> Figure:
        """Model FLOP/s utilization with causal attention, in percent."""
        return utilisation(self.result)["mfu_causal"]

    @property
    def memory(self) -> float | None:
        """Peak allocated memory of the fullest rank in GB."""
        value = self.result["memory_metrics"]["peak_memory_allocated_gb"]
        return float(value) if value else None

    @property
    def loss(self) -> float | None:
        """Mean loss over the last tenth of the steps in nats per token; None if a loss is missing."""
        losses = self.result["loss_values"]
        return last_loss(self.result) if losses and None not in losses else None

    @property
    def seed(self) -> int | None:
        """Seed that ran; the one that was asked for where it was not read back."""
        ran = self.result["resolved_config"].get("seed")
        found = self.result["training_config"].get("seed") if ran is None else ran
        return None if found is None else int(found)


@dataclass(eq=False)
class Series:
    """Comparable runs in the order of their start."""

    key: Key
    runs: list[Run]
    detail: str = ""
    """Properties that tell this series from others of the same name."""

    @property
    def name(self) -> str:
        """Model, framework, device and host, with what distinguishes the series from others of that name."""
        return f"{_base_name(self)}{self.detail and '; '}{self.detail}"

    @cached_property
    def blocks(self) -> list[list[Run]]:
        """Runs of one UTC day with the same versions, in the order of time."""
        return [list(runs) for _, runs in groupby(self.runs, lambda run: (run.started.date(), _state_key(run)))]


def sort(
    entries: Iterable[Entry], join: Collection[str] = (), since: datetime | None = None
) -> tuple[list[Series], list[tuple[Entry, str]]]:
    """Return the series of entries without copies, by name, and the entries that are in none, each with the reason.

    Runs that started before `since` are left out without a line. `join` names properties of JOINABLE that runs of one
    series may differ in.
    """
    runs: list[Run] = []
    left_out = []
    for entry in entries:
        started = start_of(entry.result)
        if since and started and started < since:
            continue
        run = _run(entry, started)
        if isinstance(run, Run):
            runs.append(run)
        else:
            left_out.append((entry, run))
    by_key = grouped(runs, lambda run: json.dumps(_key(run.result, join), sort_keys=True, default=str))
    found = [Series(_key(members[0].result, join), sorted(members, key=_order)) for members in by_key.values()]
    for alike in grouped(found, _base_name).values():
        chosen = telling([series.key for series in alike])
        for series in alike:
            series.detail = plain(", ".join(_property(name, series.key.get(name)) for name in chosen))
    return sorted(found, key=lambda one: one.name), left_out


def start_of(result: Result) -> datetime | None:
    """Return the start of a run in UTC; None if it is not on record."""
    try:
        return moment(result["provenance"]["started_utc"])
    except ValueError:
        return None


def _run(entry: Entry, started: datetime | None) -> Run | str:
    """Return the run of an entry, or the reason why it is in no series."""
    if not entry.is_counted:
        return entry.why_not_counted or f"status {entry.result['status']}"
    if started is None:
        return NO_START
    rate = tokens_per_second_per_gpu(entry.result)
    return Run(entry, started, rate) if rate else NO_STEADY_STEP


def _order(run: Run) -> tuple[datetime, int, str]:
    return run.started, run.result["run"], str(run.entry.path)


def _key(result: Result, join: Collection[str]) -> dict[str, Any]:
    config = result["training_config"]
    names = [place.key for place in in_results().values() if place.key not in NOT_PART]
    key: dict[str, Any] = {
        **{name: result[name] for name in ("model", "model_size", "platform", "framework", "method")},
        "device": device_name(result),
        "host": machine_of(result),
        "label": result["label"],
        "source": result.get("source", "recorder"),
        "num_gpus": config["num_gpus"],
        **{name: _as_number(config.get(name, OLDER.get(name))) for name in names},
        "parameter_count": result["resolved_config"].get("parameter_count"),
        "data": result["fingerprint"]["dataset_bin_sha256"] or f"unknown: {config.get('dataset')}",
    }
    return {name: value for name, value in key.items() if name not in join}


def _as_number(value: Any) -> Any:
    """Return a whole number as int: a framework may record either."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _state_key(run: Run) -> tuple[tuple[str, str], ...]:
    return tuple(state_of(run.result).items())


def _base_name(series: Series) -> str:
    key = series.key
    host = f", host {key['host']}" if "host" in key else ""
    return plain(f"{key['model']} {key['model_size']}, {key['platform']}/{key['framework']} on {key['device']}{host}")


def _property(name: str, value: Any) -> str:
    shown = "none" if value in (None, "") else str(value)
    return f"{name.replace('_', ' ')} {shown[:12] if len(shown) == 64 else shown}"


def dates(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the first and the last day of runs."""
    yield from dict.fromkeys(f"{run.started:%Y-%m-%d}" for run in (runs[0], runs[-1]))


@dataclass(frozen=True)
class OfVersion:
    """The runs of one set of versions, with the mean of each figure over those that have it (None: no run has)."""

    versions: dict[str, str]
    """All versions by name."""
    text: str
    """Those versions that differ within the series, or all if none does."""
    runs: tuple[Run, ...]

    rate: float
    """Tokens a second and GPU."""
    mfu_percent: float | None
    """Model FLOP/s utilization with causal attention."""
    memory_gb: float | None
    """Peak allocated memory."""
    loss: float | None
    """Last loss in nats per token, of all seeds."""


def by_version(runs: Sequence[Run]) -> list[OfVersion]:
    """Return the figures of each set of versions, in the order in which the sets were first used."""
    groups = grouped(runs, lambda run: tuple(versions_of(run.result).items()))
    sets = [dict(key) for key in groups]
    names = list(dict.fromkeys(name for one in sets for name in one))
    differ = [name for name in names if len({one.get(name) for one in sets}) > 1] or names
    return [
        OfVersion(
            one,
            ", ".join(f"{name} {one.get(name, 'none')}" for name in differ) or UNKNOWN,
            tuple(members),
            statistics.geometric_mean(run.rate for run in members),
            _mean(run.mfu.value for run in members),
            _mean(run.memory for run in members),
            _mean(run.loss for run in members),
        )
        for one, members in zip(sets, groups.values(), strict=True)
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
