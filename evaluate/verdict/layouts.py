"""The layout of a run on its GPUs, and the fastest of several layouts of one side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evaluate.checks.entries import Entry
from evaluate.metrics.intervals import half_interval
from evaluate.metrics.throughput import tokens_per_second_per_gpu
from utils.results.schema import Result

LEVEL = 0.05


class Layout(NamedTuple):
    """The spread of a run over its GPUs; a size is None if the result does not record it."""

    num_gpus: int | None
    micro_batch_size: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    dp: int | None

    def fits(self, other: Layout) -> bool:
        """Return whether two layouts are equal as far as both are known."""
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))

    def fits_without_size(self, other: Layout) -> bool:
        """Return whether two layouts fit but for the number of GPUs and of copies of the model, as of node counts."""
        return self._replace(num_gpus=None, dp=None).fits(other)

    @property
    def terms(self) -> dict[str, str]:
        """Each size in words: `8 GPUs`, `MBS 1`; `MBS unknown` for one that the result does not record."""
        sizes = zip(("MBS", "TP", "PP", "CP", "DP"), self[1:], strict=True)
        return {
            "GPUs": f"{self.num_gpus} GPU{'' if self.num_gpus == 1 else 's'}",
            **{name: f"{name} {'unknown' if value is None else value}" for name, value in sizes},
        }

    @property
    def text(self) -> str:
        """The layout in words: `8 GPUs, MBS 1, TP 4, PP 1, CP 1, DP 2`, as far as it is known."""
        return ", ".join(text for text in self.terms.values() if not text.endswith("unknown"))


def layout_of(result: Result) -> Layout:
    """Return the layout that ran; where it was not read back, the one that was asked for."""
    ran, asked = result["resolved_config"], result["training_config"]
    return Layout(*(asked.get(key) if ran.get(key) is None else ran[key] for key in Layout._fields))


def fastest(layouts: Mapping[Layout, Sequence[Entry]]) -> Layout:
    """Return the layout with the highest tokens/s/GPU, by the lower end of its own 95 % interval over the runs.

    A single run has no interval, so a layout with one run is chosen only if none has several. Without a counted run, it
    is the first layout.
    """
    logs = {layout: _logs(entries) for layout, entries in layouts.items()}
    several = [layout for layout in layouts if len(logs[layout]) > 1]
    if several:
        ends = {layout: statistics.fmean(logs[layout]) - half_interval([logs[layout]], LEVEL) for layout in several}
        return max(several, key=ends.__getitem__)
    return max(layouts, key=lambda layout: max(logs[layout], default=-math.inf))


def compared_with(chosen: Sequence[Entry], other: Sequence[Entry]) -> float | None:
    """Return the throughput per GPU of another layout over that of the chosen one; None if one has no counted run."""
    ours, theirs = _logs(chosen), _logs(other)
    return math.exp(statistics.fmean(theirs) - statistics.fmean(ours)) if ours and theirs else None


def _logs(entries: Sequence[Entry]) -> list[float]:
    rates = (tokens_per_second_per_gpu(entry.result) for entry in entries if entry.is_counted)
    return [math.log(rate) for rate in rates if rate]
