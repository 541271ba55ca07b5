"""Series of comparable runs in the order of their start: one machine, one framework, one set of settings.

Two runs share a series if they share the table of a comparison and the row in it (evaluate/report/groups.py: model,
size, method, sequence length, global batch, precision, data; platform, framework, device, layout, label, host), every
setting of config.env that is in results, and the kind of record (the suite's own, or a log). Not part of it: the seed,
because losses are compared seed by seed, and where the data lay. Versions are not part of it: their effect is what a
history shows.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import groupby
from typing import Any

from evaluate.checks.clock import loop_seconds
from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped, machine_of
from evaluate.fairness.items import as_number
from evaluate.metrics.figures import Figure
from evaluate.metrics.measured_rate import moment_of
from evaluate.metrics.metrics import last_loss, utilisation
from evaluate.metrics.steady import tokens_per_second_per_gpu
from evaluate.report.tables import plain
from evaluate.timeline.states import state_of, versions_of
from evaluate.verdict.side_names import device_name, layout_of, telling
from evaluate.verdict.system import TRAITS, setting_of
from utils.results.schema import Result
from utils.settings.keys import in_results

SPEED, LOOP, MEMORY, LOSS = "tokens_per_second_per_gpu", "loop_over_steps", "peak_memory_gb", "last_loss"
"""Quantities of a run: tokens a second and GPU over the steady steps; seconds of the training loop, which has a timer
of its own, over those of its steps; peak allocated memory of the fullest rank; mean loss over the last tenth of the
steps in nats per token, None if a loss is missing."""
NOT_PART = ("seed", "dataset", "samples", "allow_repeat")
"""Settings that two runs of a series may differ in; the data are compared by their hash."""
HASH_CHARACTERS = 64
"""Of a SHA-256."""


@dataclass(frozen=True, eq=False)
class Run:
    """One counted run of a series."""

    entry: Entry
    started: datetime
    """In UTC."""
    mfu: Figure
    """Model FLOP/s utilization with causal attention, in percent."""
    seed: int | None
    """Seed that ran; the one that was asked for where it was not read back."""
    values: Mapping[str, float | None]
    """Value of each quantity, by its name in history.json."""


@dataclass(eq=False)
class Series:
    """Comparable runs in the order of their start."""

    key: Mapping[str, Any]
    runs: list[Run]
    detail: str = ""
    """Properties that tell this series from others of the same name."""

    @property
    def name(self) -> str:
        """Model, framework, device and host, with what distinguishes the series from others of that name."""
        name = _base_name(self)
        if self.detail:
            name += f"; {self.detail}"
        return name

    @cached_property
    def blocks(self) -> list[list[Run]]:
        """Runs of one UTC day with the same versions, in the order of time."""
        groups = groupby(self.runs, lambda run: (run.started.date(), state_of(run.entry.result)))
        return [list(runs) for _, runs in groups]


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
        start = moment_of(entry.result)
        if since and start and start < since:
            continue
        rate = tokens_per_second_per_gpu(entry.result) if entry.is_counted else None
        if not entry.is_counted:
            left_out.append((entry, entry.why_not_counted or f"status {entry.result['status']}"))
        elif start is None:
            left_out.append((entry, "no start time on record, so it has no place in the order of time"))
        elif not rate:
            left_out.append((entry, "no steady step, so no throughput"))
        else:
            runs.append(_run(entry, start, rate))
    # as JSON, because settings may be lists, which are no keys
    by_key = grouped(runs, lambda run: json.dumps(_key(run.entry.result, join), sort_keys=True, default=str))
    all_series = []
    for members in by_key.values():
        members.sort(key=lambda run: (run.started, run.entry.result["run"], str(run.entry.path)))
        all_series.append(Series(_key(members[0].entry.result, join), members))
    for alike in grouped(all_series, _base_name).values():
        names = telling([series.key for series in alike])
        for series in alike:
            series.detail = plain(", ".join(_property(name, series.key.get(name)) for name in names))
    return sorted(all_series, key=lambda series: series.name), left_out


def _run(entry: Entry, start: datetime, rate: float) -> Run:
    result = entry.result
    values: dict[str, float | None] = dict.fromkeys((LOOP, MEMORY, LOSS)) | {SPEED: rate}
    loop = loop_seconds(result)
    if loop is not None:
        values[LOOP] = loop / math.fsum(result["step_times"])
    memory = result["memory_metrics"]["peak_memory_allocated_gb"]
    # 0 is no measurement
    if memory:
        values[MEMORY] = float(memory)
    losses = result["loss_values"]
    if losses and None not in losses:
        values[LOSS] = last_loss(result)
    # what ran counts more than what was asked for
    seed = result["resolved_config"].get("seed")
    if seed is None:
        seed = result["training_config"].get("seed")
    if seed is not None:
        seed = int(seed)
    return Run(entry, start, utilisation(result)["mfu_causal"], seed, values)


def _key(result: Result, join: Collection[str]) -> dict[str, Any]:
    config = result["training_config"]
    # every setting of a result, and over it the layout and the traits of the system, which pairs and reports read too
    settings: dict[str, Any] = {"num_gpus": config["num_gpus"]}
    for place in in_results().values():
        settings[place.key] = as_number(config.get(place.key))
    settings |= layout_of(result)._asdict()
    for trait, value in zip(TRAITS, setting_of(result).traits, strict=True):
        settings[trait.key] = value
    key: dict[str, Any] = {
        **{name: result[name] for name in ("model", "model_size", "platform", "framework", "method")},
        "device": device_name(result),
        "host": machine_of(result),
        "label": result["label"],
        "source": result.get("source", "recorder"),
        **{name: value for name, value in settings.items() if name not in NOT_PART},
        "parameter_count": result["resolved_config"].get("parameter_count"),
        "data": result["fingerprint"]["dataset_bin_sha256"] or f"unknown: {config.get('dataset')}",
    }
    return {name: value for name, value in key.items() if name not in join}


def _base_name(series: Series) -> str:
    key = series.key
    host = f", host {key['host']}" if "host" in key else ""
    return plain(f"{key['model']} {key['model_size']}, {key['platform']}/{key['framework']} on {key['device']}{host}")


def _property(name: str, value: Any) -> str:
    shown = "none" if value in (None, "") else str(value)
    if len(shown) == HASH_CHARACTERS:
        shown = shown[:12]
    return f"{name.replace('_', ' ')} {shown}"


def dates(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the first and the last day of runs."""
    yield from dict.fromkeys(f"{run.started:%Y-%m-%d}" for run in (runs[0], runs[-1]))


def by_version(runs: Sequence[Run]) -> list[tuple[str, list[Run], dict[str, Any]]]:
    """Return each set of versions, in the order in which they were first used: in words, its runs, its JSON.

    The words name the versions that differ within the series, or all if none does. A figure is the mean over the runs
    that have it, null if none has; the loss is that of all seeds.
    """
    groups = grouped(runs, lambda run: tuple(versions_of(run.entry.result).items()))
    all_versions = [dict(key) for key in groups]
    names = list(dict.fromkeys(name for versions in all_versions for name in versions))
    differing = [name for name in names if len({versions.get(name) for versions in all_versions}) > 1]
    sets = []
    for versions, members in zip(all_versions, groups.values(), strict=True):
        figures = {
            "versions": versions,
            "runs": len(members),
            "first_utc": members[0].started.isoformat(timespec="seconds"),
            "last_utc": members[-1].started.isoformat(timespec="seconds"),
            SPEED: statistics.geometric_mean(run.values[SPEED] or 0.0 for run in members),
            "mfu_percent": _mean(run.mfu.value for run in members),
            MEMORY: _mean(run.values[MEMORY] for run in members),
            LOSS: _mean(run.values[LOSS] for run in members),
        }
        text = ", ".join(f"{name} {versions.get(name, 'none')}" for name in differing or names)
        sets.append((text or "versions unknown", members, figures))
    return sets


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
