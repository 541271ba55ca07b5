"""What a comparison shows: groups that may be compared, a row for each system in them, spreads and ratios.

The unit of every spread is the run (one process restart), not the step. `evaluate/report/grouping.py` makes groups of
results.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from evaluate.checks.entries import Entry
from evaluate.metrics.steady import steady_step_times
from evaluate.report.tables import plain
from utils.results.schema import Result

ENOUGH_RUNS = 5
"""Below this many runs the smallest and the largest say little about the next one."""
LAST_PART = 10
"""The last loss is the mean over the last 1/LAST_PART of the steps: that of one step is mostly noise of its batch."""


class GroupKey(NamedTuple):
    """What must be equal for two results to stand in one table."""

    model: str
    model_size: str
    method: str
    sequence_length: int
    global_batch_size: int
    precision: str
    dataset: str | None
    """sha256 of the .bin; a text starting with `unknown` where the result does not know it, which equals no other."""

    @property
    def title(self) -> str:
        """Model, size and method."""
        return plain(f"{self.model} {self.model_size}, method {self.method}")

    @property
    def setting(self) -> str:
        """Batch, sequence length, precision and data."""
        data = self.dataset or "unknown"
        data = data if data.startswith("unknown") else f"sha256 {data[:12]}"
        batch = f"Global batch {self.global_batch_size} sequences of {self.sequence_length} tokens"
        return plain(f"{batch}, {self.precision or 'unknown precision'}, data {data}")


class RowKey(NamedTuple):
    """One system: results that differ in any of these are never averaged."""

    platform: str
    framework: str
    device: str | None
    layout: str
    label: str
    host: str | None


@dataclass(frozen=True)
class Spread:
    """The values of several runs, at least one."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Arithmetic mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def median(self) -> float:
        """Median over the runs."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """Smallest run."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Largest run."""
        return max(self.values)


@dataclass(eq=False)
class Row:
    """One system of a group with all its results, counted or not; once made they stay as they are."""

    key: RowKey
    entries: list[Entry]
    letter: str = ""
    """Short name of the row in its group: A, B, ..."""
    detail: str = ""
    """Whatever tells this row from the others of its group, beside platform, framework and device."""

    @property
    def name(self) -> str:
        """Letter and `platform/framework`."""
        return plain(f"{self.letter} {self.key.platform}/{self.key.framework}")

    @property
    def device(self) -> str:
        """Device name, and the detail where there is one."""
        device = plain(self.key.device or "unknown device")
        return f"{device}, {self.detail}" if self.detail else device

    @cached_property
    def counted(self) -> list[Entry]:
        """The results that enter averages."""
        return [entry for entry in self.entries if entry.is_counted]

    def _spread(self, section: str, key: str) -> Spread | None:
        """Return the spread of one measured value over the counted runs; None where no run has it."""
        values = [entry.result[section][key] for entry in self.counted]
        known = tuple(float(value) for value in values if value is not None)
        return Spread(known) if known else None

    @cached_property
    def throughput(self) -> Spread | None:
        """tokens/s/GPU of each run (a rank on a machine without GPUs)."""
        return self._spread("performance_metrics", "tokens_per_second_per_gpu")

    @cached_property
    def step_time(self) -> Spread | None:
        """Mean steady step time of each run in seconds, from the raw samples."""
        means = tuple(statistics.fmean(steady_step_times(entry.result)) for entry in self.counted)
        return Spread(means) if means else None

    @cached_property
    def memory(self) -> Spread | None:
        """Peak allocated memory of each run in GB, the largest rank."""
        return self._spread("memory_metrics", "peak_memory_allocated_gb")

    @cached_property
    def first_loss(self) -> Spread | None:
        """Loss of the first step of each run, nats per token."""
        losses = tuple(values[0] for values in self._losses())
        return Spread(losses) if losses else None

    @cached_property
    def last_loss(self) -> Spread | None:
        """Mean loss over the last tenth of the steps of each run, nats per token."""
        losses = tuple(_tail_mean(values) for values in self._losses())
        return Spread(losses) if losses else None

    def _losses(self) -> list[list[float]]:
        """Return the losses of each counted run that has them all; one of an earlier format may have none."""
        curves = [entry.result["loss_values"] for entry in self.counted]
        return [values for values in curves if None not in values]


@dataclass(eq=False)
class Group:
    """Results that may stand in one table, by row; one that is made is not changed, and what follows is kept."""

    key: GroupKey
    rows: list[Row]

    @cached_property
    def counted(self) -> list[Entry]:
        """All results that enter averages."""
        return [entry for row in self.rows for entry in row.counted]


@dataclass(frozen=True)
class Ratio:
    """Mean throughput of `row` over that of `base`, with the smallest and largest quotient of two of their runs."""

    row: Row
    base: Row
    value: float
    low: float
    high: float


def ratios(group: Group) -> list[Ratio]:
    """Return the throughput of every row with counted runs over that of the first such row."""
    rows = [(row, row.throughput) for row in group.rows]
    measured = [(row, spread) for row, spread in rows if spread is not None]
    if not measured:
        return []
    base, over = measured[0]
    return [
        Ratio(row, base, spread.mean / over.mean, spread.low / over.high, spread.high / over.low)
        for row, spread in measured[1:]
    ]


def _tail_mean(losses: Sequence[float]) -> float:
    return statistics.fmean(losses[-max(1, len(losses) // LAST_PART) :])


def run_label(result: Result) -> str:
    """Return `run 3`, or `run 3, attempt 2` where it was repeated."""
    return f"run {result['run']}" + (f", attempt {result['attempt']}" if result["attempt"] > 1 else "")
