"""Figures of a series by version: runs of the same software, driver and container image together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evaluate.timeline.series import Run
from evaluate.timeline.states import versions_of

UNKNOWN = "versions unknown"


@dataclass(frozen=True)
class OfVersion:
    """The runs of one set of versions, with the mean of each figure over those that have it (None: no run has)."""

    versions: dict[str, str]
    """All versions by name."""
    text: str
    """Those versions that differ within the series, or all if none does."""
    runs: tuple[Run, ...]

    @property
    def rate(self) -> float:
        """Tokens a second and GPU."""
        return statistics.fmean(run.rate for run in self.runs)

    @property
    def mfu_percent(self) -> float | None:
        """Model FLOP/s utilization with causal attention."""
        return self._mean(lambda run: run.mfu.value)

    @property
    def memory_gb(self) -> float | None:
        """Peak allocated memory."""
        return self._mean(lambda run: run.memory)

    @property
    def loss(self) -> float | None:
        """Last loss in nats per token, of all seeds."""
        return self._mean(lambda run: run.loss)

    def _mean(self, read: Callable[[Run], float | None]) -> float | None:
        known = [value for run in self.runs if (value := read(run)) is not None]
        return statistics.fmean(known) if known else None


def by_version(runs: Sequence[Run]) -> list[OfVersion]:
    """Return the figures of each set of versions, in the order in which the sets were first used."""
    groups: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(versions_of(run.result).items()), []).append(run)
    sets = [dict(key) for key in groups]
    names = list(dict.fromkeys(name for one in sets for name in one))
    differ = [name for name in names if len({one.get(name) for one in sets}) > 1] or names
    return [
        OfVersion(one, ", ".join(f"{name} {one.get(name, 'none')}" for name in differ) or UNKNOWN, tuple(members))
        for one, members in zip(sets, groups.values(), strict=True)
    ]
