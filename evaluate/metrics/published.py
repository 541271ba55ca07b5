"""The throughput of a side as a share of the best published figure for its device; a side far below is marked untuned.

A figure is used only if its model, precision, sequence length, number of GPUs and, of a mixture of experts, its routing
are those of the runs, and if it was published before them. The batch is free, as it was for the publisher.
`evaluate/published.json` holds the figures with source, date, method and grade. The suite's own throughput is by step
time; a figure by wall time is somewhat lower.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from evaluate.metrics.defaults import LEAST_PERCENT
from evaluate.metrics.figures import Figure, unknown
from evaluate.metrics.measured_rate import moment_of
from evaluate.metrics.metrics import device_of
from evaluate.metrics.partition import format_of
from evaluate.metrics.steady import tokens_per_second_per_gpu
from utils.results.schema import Result

PUBLISHED_PATH = Path(__file__).parents[1] / "published.json"
METHODS = {"wall": "wall time", "step": "step time"}
"""The time that a figure counts: all of the training between two evaluations, or the steps only."""
GRADES = {"log": "recomputed from raw logs", "pub": "as published", "thr": "a threshold of a test"}


@dataclass(frozen=True)
class Published:
    """One published figure of a model of full size.

    One without `tokens_per_second_per_gpu` is unusable, and `note` holds the reason. `date`, of publication, is a month
    (2025-11) or a day (2025-11-18).
    """

    model: str
    device: str
    precision: str
    sequence_length: int | None
    gpus: int
    tokens_per_second_per_gpu: float | None
    method: str
    grade: str
    date: str
    source: str
    note: str | None
    routing: str | None = None
    """Of a mixture of experts: `learned`, or `balanced` where the source forces it."""

    def __str__(self) -> str:
        how = f"{METHODS[self.method]}, {GRADES[self.grade]}"
        if self.note:
            how += f"; {self.note}"
        return f"{self.source}, {self.date} ({how})"

    def is_before(self, day: str) -> bool:
        """Check that it was published by a day (2025-11-18); True for an empty text, an unknown day."""
        return not day or self.date <= day[: len(self.date)]

    def age_months(self, day: str) -> int:
        """Return the calendar months from the publication to a day."""
        return 12 * (int(day[:4]) - int(self.date[:4])) + int(day[5:7]) - int(self.date[5:7])


@dataclass(frozen=True)
class Tuning:
    """The throughput of a side in percent of the best published figure."""

    share: Figure
    tokens_per_second_per_gpu: float | None
    published: Published | None
    basis: str = ""
    """The published figure with its age, in words."""
    age_months: int | None = None
    """Age of the figure at the start of the first run, in calendar months; None if no run has a start time."""

    @property
    def is_untuned(self) -> bool | None:
        """True if the share is below LEAST_PERCENT; None if there is no figure to compare with."""
        return None if self.share.value is None else self.share.value < LEAST_PERCENT


@lru_cache
def table() -> tuple[Published, ...]:
    """Return all published figures."""
    return tuple(Published(**row) for row in json.loads(PUBLISHED_PATH.read_text(encoding="utf8"))["figures"])


def tuning(side: Sequence[Result]) -> Tuning:
    """Compare the runs of a side, at least one, with the best published figure for their device and work."""
    works = {_work(result) for result in side}
    # the mean of two works could be compared with no figure
    if len(works) > 1:
        return _unknown("the runs of this side are not of one device, work and number of GPUs")
    rates = [tokens_per_second_per_gpu(result) for result in side]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return _unknown("a run of this side has no steady step")
    (work,) = works
    # as in a verdict
    rate = statistics.geometric_mean(known)
    if work.device is None:
        return _unknown("the device is not known here, so no published figure can be used", rate)
    alike = [figure for figure in table() if work.fits(figure)]
    if not alike:
        return _unknown(f"no figure of {work} is known to be published", rate)
    day = _first_day(side)
    usable, reasons = [], []
    for figure in alike:
        # a figure that came later was no mark to tune for
        if not figure.is_before(day):
            reasons.append(f"published after the runs: {figure}")
        elif not figure.tokens_per_second_per_gpu:
            reasons.append(str(figure))
        else:
            usable.append((figure.tokens_per_second_per_gpu, figure))
    if not usable:
        return _unknown(f"no usable figure of {work} is published: {'; '.join(reasons)}", rate)
    most, best = max(usable, key=itemgetter(0))
    age = best.age_months(day) if day else None
    basis = f"{best}, age unknown" if age is None else f"{best}, {age} months before the runs"
    how = f"mean tokens/s/GPU of the runs / {most:,.0f} tokens/s/GPU: {basis}"
    return Tuning(Figure(100 * rate / most, "%", how), rate, best, basis, age)


def _unknown(reason: str, rate: float | None = None) -> Tuning:
    return Tuning(unknown("%", reason), rate, None)


def _first_day(side: Sequence[Result]) -> str:
    """Return the day of the first run, such as 2025-11-18; empty if no run has a time."""
    times = [moment_of(result) for result in side]
    first = min(filter(None, times), default=None)
    return f"{first:%Y-%m-%d}" if first else ""


class _Work(NamedTuple):
    """Settings that a published figure must share with the runs of a side."""

    device: str | None
    model: str
    model_size: str
    precision: str
    sequence_length: int
    gpus: int
    routing: str | None

    def fits(self, figure: Published) -> bool:
        """Return whether a figure is of this work; published figures are of models of full size."""
        published = (figure.device, figure.model, "full", figure.precision, figure.gpus, figure.routing)
        ours = (self.device, self.model, self.model_size, self.precision, self.gpus, self.routing)
        return published == ours and figure.sequence_length in (self.sequence_length, None)

    def __str__(self) -> str:
        work = f"{self.model} {self.model_size} in {self.precision}, SL {self.sequence_length}"
        work += f", on {self.gpus} x {self.device}"
        return f"{work} with {self.routing} routing" if self.routing else work


def _work(result: Result) -> _Work:
    config, device = result["training_config"], device_of(result)
    return _Work(
        device.name if device else None,
        result["model"],
        result["model_size"],
        str(format_of(result)),
        config["sequence_length"],
        config["num_gpus"],
        result["resolved_config"].get("routing"),
    )
