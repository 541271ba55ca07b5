"""Groups of comparable results, a row for each system in a group, and spreads.

The unit of every spread is the run (one start of the process), not the step. Model, size, method, sequence length,
global batch, precision and data are never mixed: each combination is a group.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_uppercase
from typing import Any, NamedTuple, TypeVar

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import content_of
from evaluate.metrics import metrics
from evaluate.metrics.partition import kind_of
from evaluate.metrics.steady import step_times, steps_text, tokens_per_second_per_gpu
from evaluate.report.tables import counted, plain
from evaluate.verdict.pairs import place
from evaluate.verdict.system import setting_of, terms_of, unusual
from utils.results.schema import Result

SPEED, STEP, MEMORY = "tokens_per_second_per_gpu", "step_time_seconds", "peak_memory_allocated_gb"
"""Figures of a row: over its steady steps, per rank on a machine without GPUs; memory is that of the largest rank."""
ENOUGH_RUNS = 5
"""With fewer runs, the smallest and the largest predict little about the next one."""
_Key = TypeVar("_Key", bound=tuple[Any, ...])


class GroupKey(NamedTuple):
    """Properties that must be equal for two results to share a table."""

    model: str
    model_size: str
    method: str
    sequence_length: int
    global_batch_size: int
    precision: str
    dataset: str | None
    """sha256 of the .bin. Where a result does not record it: a text that starts with `unknown` and equals no other."""

    @property
    def title(self) -> str:
        """Model, size and method."""
        return plain(f"{self.model} {self.model_size}, method {self.method}")

    @property
    def setting(self) -> str:
        """Batch, sequence length, precision and data."""
        data = self.dataset or "unknown"
        if not data.startswith("unknown"):
            data = f"sha256 {data[:12]}"
        batch = f"Global batch {self.global_batch_size} sequences of {self.sequence_length} tokens"
        return plain(f"{batch}, {self.precision or 'unknown precision'}, data {data}")


class RowKey(NamedTuple):
    """Properties of one system; results that differ in any of them are never averaged."""

    platform: str
    framework: str
    device: str | None
    layout: str
    label: str
    host: str | None


def mean_of(runs: Sequence[float]) -> float:
    """Return the geometric mean over runs, of which a verdict makes its ratio: a to b is the inverse of b to a."""
    if min(runs) > 0:
        return statistics.geometric_mean(runs)
    return statistics.fmean(runs)


def known_values(values: Iterable[float | None]) -> tuple[float, ...]:
    """Return the known values."""
    return tuple(float(value) for value in values if value is not None)


@dataclass(eq=False)
class Row:
    """One system of a group with all its results, counted or not; its figures are cached, so it must not change."""

    key: RowKey
    entries: list[Entry]
    letter: str = ""
    """Short name of the row in its group: A, B, ..."""
    detail: str = ""
    """Properties beside platform, framework and device that distinguish this row from others of its group."""

    @property
    def name(self) -> str:
        """Letter and `platform/framework`."""
        return plain(f"{self.letter} {self.key.platform}/{self.key.framework}")

    @property
    def device(self) -> str:
        """Device name, followed by the detail if there is one."""
        device = plain(self.key.device or "unknown device")
        return f"{device}, {self.detail}" if self.detail else device

    @cached_property
    def counted(self) -> list[Entry]:
        """Results that enter averages."""
        return [entry for entry in self.entries if entry.is_counted]

    @cached_property
    def steady_times(self) -> list[list[float]]:
        """Steady step times of each counted run in seconds."""
        return [step_times(entry.result) for entry in self.counted]

    def steady_steps(self, opening: str = "steps ") -> str:
        """Return the numbers of the steady steps of the counted runs: `steps 11 to 100`."""
        return steps_text([entry.result for entry in self.counted], opening)

    @cached_property
    def figures(self) -> dict[str, tuple[float, ...]]:
        """The known values of the counted runs by the names of compare.json, which defines each; a loss where a run has
        all of them, which a result of an earlier format may not have."""
        results = [entry.result for entry in self.counted]
        # a mean over some of the steps would be another quantity
        with_losses = [result for result in results if None not in result["loss_values"]]
        return {
            SPEED: known_values(map(tokens_per_second_per_gpu, results)),
            STEP: known_values(statistics.fmean(times) for times in self.steady_times if times),
            MEMORY: known_values(result["memory_metrics"][MEMORY] for result in results),
            "first_loss": known_values(result["loss_values"][0] for result in with_losses),
            "last_loss": known_values(map(metrics.last_loss, with_losses)),
        }


@dataclass(eq=False)
class Group:
    """Results that may share a table, by row; `counted` is cached, so the rows must not change."""

    key: GroupKey
    rows: list[Row]

    @cached_property
    def counted(self) -> list[Entry]:
        """All results of the group that enter averages."""
        return [entry for row in self.rows for entry in row.counted]

    @property
    def not_counted(self) -> list[tuple[Row, Entry]]:
        """Results that enter no average, each with its row."""
        return [(row, entry) for row in self.rows for entry in row.entries if not entry.is_counted]

    @property
    def steady_steps(self) -> str:
        """Numbers of the steps behind the throughput and the step time: of all rows, or of each if they differ."""
        rows = [row for row in self.rows if row.counted]
        if len({row.steady_steps() for row in rows}) < 2:
            return f"steady {rows[0].steady_steps() if rows else 'steps unknown'}"
        return "steady steps " + ", ".join(f"{row.letter}: {row.steady_steps(opening='')}" for row in rows)

    @property
    def conditions(self) -> str:
        """Layouts, versions of the software, first and last date, and steady steps of the counted runs."""
        layouts = {row.key.layout for row in self.rows}
        versions, dates = set(), set()
        for entry in self.counted:
            provenance = entry.result["provenance"]
            for name, version in (provenance["framework_versions"] or {}).items():
                versions.add(f"{name} {version}")
            if provenance["started_utc"]:
                dates.add(provenance["started_utc"][:10])
        period = "date unknown"
        if dates:
            period = " to ".join(dict.fromkeys((min(dates), max(dates))))
        software = ", ".join(sorted(versions)) or "versions unknown"
        return "; ".join((" | ".join(sorted(layouts)), software, period, self.steady_steps))


def run_label(result: Result) -> str:
    """Return `run 3`, or `run 3, attempt 2` if the run was repeated."""
    label = f"run {result['run']}"
    if result["attempt"] > 1:
        label += f", attempt {result['attempt']}"
    return label


def grouped(entries: Sequence[Entry], by: str, baseline: str | None = None) -> list[Group]:
    """Return the sorted groups of entries without copies, those without a counted result last.

    The rows have the order of the verdicts, the baseline first. A result that failed before it recorded its data,
    device or host joins the only group and row that match it. If several match, it forms its own.
    """
    groups = []
    for key, members in sorted(by_key(entries, _group_key).items(), key=lambda item: str(item[0])):
        rows = [Row(row_key, of_row) for row_key, of_row in by_key(members, _row_key).items()]
        # rows and verdicts name the sides in one order
        rows.sort(key=lambda row: (place(row.entries[0].result, by, baseline), str(row.key)))
        for number, row in enumerate(rows):
            row.letter = letter_of(number)
        _distinguish(rows)
        groups.append(Group(key, rows))
    return sorted(groups, key=lambda group: not group.counted)


def _group_key(entry: Entry) -> GroupKey:
    result, config = entry.result, entry.result["training_config"]
    dataset = result["fingerprint"]["dataset_bin_sha256"]
    if dataset is None and result["status"] == "ok":
        host = result["provenance"]["host"] or "unknown host"
        # two unknown data sets are not the same one: the name keeps them apart
        dataset = f"unknown ({result['platform']}/{result['framework']} on {host})"
    return GroupKey(
        result["model"],
        result["model_size"],
        result["method"],
        config["sequence_length"],
        config["global_batch_size"],
        config["precision"],
        dataset,
    )


def _row_key(entry: Entry) -> RowKey:
    result = entry.result
    layout = ", ".join([_sizes(result), *unusual(setting_of(result))])
    device, part = result["gpu_info"]["device_name"], kind_of(result).text
    if device and part:
        device = f"{device} ({part})"
    return RowKey(
        result["platform"],
        result["framework"],
        device,
        layout,
        result["label"],
        result["provenance"]["host"],
    )


def _sizes(result: Result) -> str:
    config = result["training_config"]
    unit = "rank" if result["platform"] == "cpu" else "GPU"
    names = ["dp", "tp", "pp", "cp"]
    if config["ep"] not in (None, 1):
        names.append("ep")
    split = ", ".join(f"{name.upper()} {config[name]}" for name in names)
    return f"{counted(config['num_gpus'], unit)}, MBS {config['micro_batch_size']}, {split}"


def by_key(entries: Sequence[Entry], key_of: Callable[[Entry], _Key]) -> dict[_Key, list[Entry]]:
    """Return the entries of each key; None in a key is a property that a run failed before it could record.

    Such a run joins the only key that is equal in everything else.
    """
    complete = {key for key in map(key_of, entries) if None not in key}
    members: dict[_Key, list[Entry]] = {}
    for entry in entries:
        key = key_of(entry)
        # Only a result that is not ok may join others on incomplete evidence: it enters no average.
        if None in key and entry.result["status"] != "ok":
            homes = [home for home in complete if _fits(key, home)]
            if len(homes) == 1:
                key = homes[0]
        members.setdefault(key, []).append(entry)
    return members


def _fits(key: tuple[Any, ...], home: tuple[Any, ...]) -> bool:
    """Return whether a key with unknown properties may be this complete one."""
    return all(value is None or value == known for value, known in zip(key, home, strict=True))


def without_copies(entries: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, Entry]]]:
    """Return the entries of distinct content, and the copies: each further entry with the first of the same content.

    A copy is not a second measurement and does not count.
    """
    unique, copies = [], []
    alike: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        same_samples = alike.setdefault((entry.result["run"], *entry.result["step_times"]), [])
        for first in same_samples:
            if content_of(first.result) == content_of(entry.result):
                copies.append((entry, first))
                break
        else:
            same_samples.append(entry)
            unique.append(entry)
    return unique, copies


def _distinguish(rows: Sequence[Row]) -> None:
    """Set the detail of each row to the properties that not all rows share."""
    properties: list[dict[str, str]] = []
    for row in rows:
        result = row.entries[0].result
        own = {
            "host": f"host {row.key.host or 'none'}",
            "label": f"label {row.key.label or 'none'}",
            "sizes": _sizes(result),
        }
        properties.append(own | terms_of(setting_of(result)))
    differing = []
    for name in properties[0]:
        # an empty text is of a setting that a framework does not read, which is no difference
        if len({texts[name] for texts in properties} - {""}) > 1:
            differing.append(name)
    for row, texts in zip(rows, properties, strict=True):
        row.detail = ", ".join(plain(texts[name]) for name in differing if texts[name])


def letter_of(number: int) -> str:
    """Return `A` for 0, `Z` for 25, `AA` for 26."""
    prefix, last = divmod(number, len(ascii_uppercase))
    letter = ascii_uppercase[last]
    return letter_of(prefix - 1) + letter if prefix else letter
