"""The history of all series: the levels of speed, memory and loss of each, and how the latest compares with the last.

The latest level is compared with the last earlier one that differs from it by more than the band; small steps and a
slow fall count as what they add up to. A change is certain if the rule of evaluate/timeline/levels.py says so and both
levels have the runs that a verdict needs (`LEAST_RUNS` of evaluate/verdict/inference.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from evaluate.checks.entries import Entry, Loaded
from evaluate.fairness.losses import LAST_LOSS
from evaluate.metrics.defaults import BAND
from evaluate.report.groups import without_copies
from evaluate.timeline import levels
from evaluate.timeline.levels import Difference, Level, Levels, Limits
from evaluate.timeline.series import LOOP, LOSS, MEMORY, SPEED, Run, Series, sort
from evaluate.timeline.states import Differing, differences
from evaluate.verdict.inference import LEAST_RUNS

UNITS = {SPEED: "tokens/s/GPU", LOOP: "x", MEMORY: "GB", LOSS: "nats/token"}
TITLES = {SPEED: "Throughput", LOOP: "Training loop over its steps", MEMORY: "Peak memory", LOSS: "Last loss"}
LIMITS = {
    SPEED: Limits(0.01, 1e-4),
    LOOP: Limits(0.01, 1e-3),
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
        changes = []
        for before, after in pairwise(self.levels.found):
            changes.append(self._change(before, after, self.levels.difference(before, after)))
        return changes

    @cached_property
    def latest(self) -> Change | None:
        """The latest level against an earlier one that differs from it by more than the band; None if none does."""
        found = self.levels.latest(self.band)
        # nothing differs by more than the band
        if found is None:
            return None
        return self._change(*found)

    @property
    def word(self) -> str:
        """The state of the track: one of the words of this module."""
        if len(self.blocks) < 2:
            return TOO_FEW
        change = self.latest
        if change is None:
            return TOO_FEW if len(self.runs) < 2 * LEAST_RUNS else STEADY
        if not change.difference.is_certain:
            return SUSPECTED
        if self.quantity == LOSS:
            return CHANGED
        # losses of one seed repeat, so a single run shows that they moved
        if not change.has_enough_runs:
            return SUSPECTED
        rises = change.ratio > 1
        if self.quantity == MEMORY:
            return MORE if rises else LESS
        # more time outside the steps is less speed
        return FASTER if rises == (self.quantity == SPEED) else SLOWER

    def _change(self, before: Level, after: Level, difference: Difference) -> Change:
        return Change(before, after, difference, self.blocks[before.last][-1], self.blocks[after.first][0])


@dataclass(frozen=True, eq=False)
class Story:
    """One series with its tracks."""

    series: Series
    tracks: Sequence[Track]
    """The speed first, then time outside the steps and memory, if they are on record, and the loss of each seed."""

    @property
    def speed(self) -> Track:
        """The track of throughput, which every series has."""
        return self.tracks[0]

    @property
    def slower_loop(self) -> Track | None:
        """The track of the training loop if more of its time is outside the steps, where the throughput is blind."""
        for track in self.tracks:
            if track.quantity == LOOP and track.word == SLOWER:
                return track
        return None

    @property
    def word(self) -> str:
        """The verdict on the series: the state of its throughput, unless only the time outside the steps grew."""
        return SLOWER if self.slower_loop else self.speed.word

    @property
    def loss_changes(self) -> list[Track]:
        """Losses that left their course."""
        return [track for track in self.tracks if track.word == CHANGED]

    @cached_property
    def version_changes(self) -> list[tuple[Run, list[Differing]]]:
        """Each run whose versions differ from those of the run before, with what differs."""
        changes = []
        for before, after in pairwise(self.series.blocks):
            differing = differences(before[-1].entry.result, after[0].entry.result)
            if differing:
                changes.append((after[0], differing))
        return changes


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
    all_series, left_out = sort(unique, join, since)
    urgency = (SLOWER, SUSPECTED, FASTER, STEADY, TOO_FEW).index
    stories = [_story(series, band) for series in all_series]
    stories.sort(key=lambda story: (not story.loss_changes, urgency(story.word), story.series.name))
    return History(
        tuple(places),
        tuple(stories),
        tuple(left_out),
        tuple((copy.path, first.path) for copy, first in copies),
        loaded.unreadable,
        band,
        since,
        tuple(join),
    )


def _story(series: Series, band: float) -> Story:
    tracks = [_track(series, quantity, band) for quantity in (SPEED, LOOP, MEMORY)]
    for seed in sorted({run.seed for run in series.runs if run.seed is not None}):
        tracks.append(_track(series, LOSS, LAST_LOSS, seed))
    return Story(series, [track for track in tracks if track is not None])


def _track(series: Series, quantity: str, band: float, seed: int | None = None) -> Track | None:
    """Return the track of one quantity, of all runs or of those with a seed; None if no run has it."""
    blocks, logarithms = [], []
    for block in series.blocks:
        members, values = [], []
        for run in block:
            value = run.values[quantity]
            if value is not None and value > 0 and seed in (None, run.seed):
                members.append(run)
                values.append(math.log(value))
        if members:
            blocks.append(tuple(members))
            logarithms.append(values)
    if not blocks:
        return None
    return Track(quantity, tuple(blocks), levels.find(logarithms, LIMITS[quantity]), band, seed)
