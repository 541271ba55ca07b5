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
from pathlib import Path

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
        return f"{self.source}, {self.date} ({how}{f'; {self.note}' if self.note else ''})"

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
    rates = [rate for result in side if (rate := tokens_per_second_per_gpu(result)) is not None]
    if len(works) > 1 or len(rates) < len(side):
        several = "the runs of this side are not of one device, work and number of GPUs"
        return Tuning(unknown("%", several if len(works) > 1 else "a run of this side has no steady step"), None, None)
    ((device, model, size, precision, length, gpus, routing),) = works
    rate = statistics.geometric_mean(rates)
    work = f"{model} {size} in {precision}, SL {length}, on {gpus} x {device}"
    work += f" with {routing} routing" if routing else ""
    wanted = (device, model, size, precision, gpus, routing)
    alike = [
        one
        for one in table()
        if (one.device, one.model, "full", one.precision, one.gpus, one.routing) == wanted
        and one.sequence_length in (length, None)
    ]
    first = min(filter(None, map(moment_of, side)), default=None)
    day = f"{first:%Y-%m-%d}" if first else ""
    usable = [one for one in alike if one.tokens_per_second_per_gpu and one.is_before(day)]
    if not usable:
        why = "; ".join(f"{'' if one.is_before(day) else 'published after the runs: '}{one}" for one in alike)
        reasons = {
            "the device is not known here, so no published figure can be used": device is None,
            f"no figure of {work} is known to be published": not alike,
            f"no usable figure of {work} is published: {why}": True,
        }
        return Tuning(unknown("%", next(reason for reason, applies in reasons.items() if applies)), rate, None)
    best = max(usable, key=lambda one: one.tokens_per_second_per_gpu or 0.0)
    most = best.tokens_per_second_per_gpu or 0.0
    age = best.age_months(day) if day else None
    basis = f"{best}, {'age unknown' if age is None else f'{age} months before the runs'}"
    how = f"mean tokens/s/GPU of the runs / {most:,.0f} tokens/s/GPU: {basis}"
    return Tuning(Figure(100 * rate / most, "%", how), rate, best, basis, age)


def _work(result: Result) -> tuple[str | None, str, str, str, int, int, str | None]:
    config, device, routing = result["training_config"], device_of(result), result["resolved_config"].get("routing")
    model = (device.name if device else None, result["model"], result["model_size"])
    return *model, str(format_of(result)), config["sequence_length"], config["num_gpus"], routing
