"""The throughput of a side as a share of the best published figure for its device; a side far below is marked untuned.

A figure is used only if its model, precision, sequence length and number of GPUs are those of the runs. The batch is
free, as it was for the publisher. `evaluate/published.json` holds the figures with source, date and the way each was
read.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from evaluate.defaults import LEAST_PERCENT
from evaluate.metrics.figures import Figure, unknown
from evaluate.metrics.metrics import device_of
from evaluate.metrics.peak import format_of
from evaluate.metrics.throughput import tokens_per_second_per_gpu
from utils.results.schema import Result

PUBLISHED_PATH = Path(__file__).parents[1] / "published.json"
MODEL = ("llama", "full")


@dataclass(frozen=True)
class Published:
    """One published figure; one without `tokens_per_second_per_gpu` is unusable, and `grade` holds the reason."""

    device: str
    precision: str
    sequence_length: int | None
    gpus: int
    tokens_per_second_per_gpu: float | None
    source: str
    date: str | None
    grade: str

    def __str__(self) -> str:
        return f"{self.source}{f', {self.date}' if self.date else ''} ({self.grade})"


@dataclass(frozen=True)
class Tuning:
    """The throughput of a side in percent of the best published figure."""

    share: Figure
    tokens_per_second_per_gpu: float | None
    published: Published | None

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
    ((device, model, size, precision, length, gpus),) = works
    rate = statistics.geometric_mean(rates)
    work = f"{model} {size} in {precision}, SL {length}, on {gpus} x {device}"
    of_work = (one for one in table() if (model, size) == MODEL)
    alike = [one for one in of_work if (one.device, one.precision, one.gpus) == (device, precision, gpus)]
    usable = [one for one in alike if one.tokens_per_second_per_gpu and one.sequence_length == length]
    if not usable:
        why = "; ".join(f"{one}" for one in alike if one.tokens_per_second_per_gpu is None)
        reasons = {
            "the device is not known here, so no published figure is": device is None,
            f"no figure of {work} is known to be published": not alike,
            f"no usable figure of {work} is published{': ' if why else ''}{why}": True,
        }
        return Tuning(unknown("%", next(reason for reason, applies in reasons.items() if applies)), rate, None)
    best = max(usable, key=lambda one: one.tokens_per_second_per_gpu or 0.0)
    most = best.tokens_per_second_per_gpu or 0.0
    how = f"mean tokens/s/GPU of the runs / {most:,.0f} tokens/s/GPU: {best}"
    return Tuning(Figure(100 * rate / most, "%", how), rate, best)


def _work(result: Result) -> tuple[str | None, str, str, str, int, int]:
    config, device = result["training_config"], device_of(result)
    model = (device.name if device else None, result["model"], result["model_size"])
    return *model, str(format_of(result)), config["sequence_length"], config["num_gpus"]
