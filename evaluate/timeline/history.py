"""The history of all series: the levels of speed, memory and loss of each, and how the latest compares with the last.

The latest level is compared with the last earlier one that differs from it by more than the band, and the last blocks
with as many earlier ones that differ most from them: small steps and a slow fall count as what they add up to. A change
is certain if the test of evaluate/timeline/levels.py finds it and both levels have the runs that a verdict needs
(`LEAST_RUNS` of evaluate/verdict/inference.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from evaluate.checks.entries import Entry, Loaded
from evaluate.fairness.losses import LAST_LOSS
from evaluate.metrics.defaults import BAND
from evaluate.report.groups import without_copies
from evaluate.timeline import levels
from evaluate.timeline.levels import Difference, Level, Levels, Limits
from evaluate.timeline.series import LOSS, MEMORY, SPEED, Run, Series, sort
from evaluate.timeline.states import Differing, differences
from evaluate.verdict.inference import LEAST_RUNS

UNITS = {SPEED: "tokens/s/GPU", MEMORY: "GB", LOSS: "nats/token"}
TITLES = {SPEED: "Throughput", MEMORY: "Peak memory", LOSS: "Last loss"}
LIMITS = {
    SPEED: Limits(0.01, 1e-4),
    MEMORY: Limits(0.01, 1e-3),
    LOSS: Limits(1e-3, 5e-4, 5e-3),
}
"""Restarts of one machine differ by 2e-4 or more in speed. The loss of a seed hardly differs: its noise is assumed."""
SLOWER, FASTER, STEADY, SUSPECTED, TOO_FEW = "slower", "faster", "steady", "suspected", "too few runs"
CHANGED, MORE, LESS = "changed", "more", "less"


@dataclass(frozen=True)
class Change:
    """A level and an earlier one, with what differs between the last run of the earlier and the first of the later."""

    before: Level
    after: Level
    difference: Difference
    last_before: Run
    first_after: Run
    near: tuple[Differing, ...] = ()
    """If nothing differs there: what differs a block earlier or later, because noise can shift a change by one."""

    @property
    def ratio(self) -> float:
        """The later level over the earlier one."""
        return math.exp(self.difference.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval of the ratio."""
        half = self.difference.half_interval
        if half is None:
            return None
        return math.exp(self.difference.value - half), math.exp(self.difference.value + half)

    @cached_property
    def differing(self) -> list[Differing]:
        """Everything on record that changed with the level."""
        return differences(self.last_before.entry.result, self.first_after.entry.result)

    @property
    def has_enough_runs(self) -> bool:
        """True if both levels have the runs that a verdict needs."""
        return min(self.before.runs, self.after.runs) >= LEAST_RUNS


@dataclass(frozen=True, eq=False)
class Track:
    """One quantity of one series over time."""

    quantity: str
    blocks: tuple[tuple[Run, ...], ...]
    levels: Levels
    band: float
    seed: int | None = None
    """Seed of the runs of a loss."""

    @property
    def title(self) -> str:
        """The name of the quantity."""
        return TITLES[self.quantity] + (f", seed {self.seed}" if self.quantity == LOSS else "")

    @property
    def runs(self) -> list[Run]:
        """All runs of the track in the order of time."""
        return [run for block in self.blocks for run in block]

    @cached_property
    def changes(self) -> list[Change]:
        """Changes from each level to the next, in the order of time."""
        found = self.levels.found
        return [self._change(a, b, self.levels.difference(a, b)) for a, b in zip(found, found[1:], strict=False)]

    @cached_property
    def latest(self) -> Change | None:
        """The latest level against an earlier one that differs from it by more than the band; None if none does."""
        found = self.levels.latest(self.band)
        return self._change(*found) if found else None

    @property
    def word(self) -> str:
        """The state of the track: one of the words of this module."""
        if len(self.blocks) < 2:
            return TOO_FEW
        found = self.latest
        if found is None:
            return TOO_FEW if len(self.runs) < 2 * LEAST_RUNS else STEADY
        if not found.difference.is_certain or (self.quantity != LOSS and not found.has_enough_runs):
            return SUSPECTED
        if self.quantity == LOSS:
            return CHANGED
        rises = found.ratio > 1
        return (FASTER if rises else SLOWER) if self.quantity == SPEED else (MORE if rises else LESS)

    def _change(self, before: Level, after: Level, difference: Difference) -> Change:
        place = after.first
        change = Change(before, after, difference, self.blocks[before.last][-1], self.blocks[place][0])
        return change if change.differing else replace(change, near=self._near(place))

    def _near(self, place: int) -> tuple[Differing, ...]:
        return tuple(
            one
            for a, b in ((place - 2, place - 1), (place, place + 1))
            if a >= 0 and b < len(self.blocks)
            for one in differences(self.blocks[a][-1].entry.result, self.blocks[b][0].entry.result)
        )


@dataclass(frozen=True, eq=False)
class Story:
    """One series with its tracks."""

    series: Series
    tracks: Sequence[Track]
    """The speed first, then the memory if a run has one on record, and the loss of each seed."""

    @property
    def speed(self) -> Track:
        """The track of throughput, which every series has."""
        return self.tracks[0]

    @property
    def loss_changes(self) -> list[Track]:
        """Losses that left their course."""
        return [track for track in self.tracks if track.word == CHANGED]

    @cached_property
    def version_changes(self) -> list[tuple[Run, list[Differing]]]:
        """Each run whose versions differ from those of the run before, with what differs."""
        blocks = self.series.blocks
        pairs = [(a[-1], b[0]) for a, b in zip(blocks, blocks[1:], strict=False)]
        found = [(after, differences(before.entry.result, after.entry.result)) for before, after in pairs]
        return [(run, what) for run, what in found if what]


@dataclass(frozen=True)
class History:
    """Everything that the report shows."""

    places: tuple[Path, ...]
    stories: tuple[Story, ...]
    left_out: tuple[tuple[Entry, str], ...]
    copies: tuple[tuple[Path, Path], ...]
    """Each copy with the file that it repeats."""
    unreadable: tuple[tuple[Path, str], ...]
    band: float
    since: datetime | None = None
    join: tuple[str, ...] = ()


def build(
    loaded: Loaded,
    places: Sequence[Path],
    band: float = BAND,
    join: Collection[str] = (),
    since: datetime | None = None,
) -> History:
    """Return the history of all results in `loaded`; copies count once.

    `band` is the largest relative difference that counts as none; `join` and `since` are those of `series.sort`.
    """
    unique, copies = without_copies(loaded.entries)
    found, left_out = sort(unique, join, since)
    urgency = (SLOWER, SUSPECTED, FASTER, STEADY, TOO_FEW).index
    return History(
        tuple(places),
        tuple(
            sorted(
                (_story(series, band) for series in found),
                key=lambda story: (not story.loss_changes, urgency(story.speed.word), story.series.name),
            )
        ),
        tuple(left_out),
        tuple((copy.path, first.path) for copy, first in copies),
        loaded.unreadable,
        band,
        since,
        tuple(join),
    )


def _story(series: Series, band: float) -> Story:
    seeds = sorted({run.seed for run in series.runs if run.seed is not None})
    wanted = [(SPEED, band, None), (MEMORY, band, None), *((LOSS, LAST_LOSS, seed) for seed in seeds)]
    return Story(series, [track for one in wanted if (track := _track(series, *one))])


def _track(series: Series, quantity: str, band: float, seed: int | None) -> Track | None:
    """Return the track of one quantity, of all runs or of those with a seed; None if no run has it."""
    known = [
        [(run, value) for run in block if (value := run.values[quantity] or 0) > 0 and seed in (None, run.seed)]
        for block in series.blocks
    ]
    kept = [block for block in known if block]
    if not kept:
        return None
    found = levels.find([[math.log(value) for _, value in block] for block in kept], LIMITS[quantity])
    return Track(quantity, tuple(tuple(run for run, _ in block) for block in kept), found, band, seed)
