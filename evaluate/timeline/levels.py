"""Levels of a quantity over time, and a test of the difference between two of them.

A block is the runs of one day with the same versions. Its value is their mean, or their median from three runs on, so
that one odd run of three does not move it. All values are logarithms.

The rule: a new level begins where most of the next blocks lie beyond the noise from the level so far. A block that lies
beyond it while most of the next ones do not is odd. Small steps and a slow fall count as what they add up to: the last
blocks are also compared with the earlier ones that differ most from them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LEVEL = 0.01
"""Chance of a change in a series without any. docs/history.md has the simulated rates."""
CONFIDENCE = 0.95
AHEAD = 5
"""Blocks that decide on a new level: up to two odd days in a row are none."""
ENOUGH_BLOCKS = 5
"""From so many on, the changes from block to block say how large the noise is."""
ENOUGH_FOR_MEDIAN = 3
FEWEST_OF_FALL = 2
"""Blocks at the end of a series, and as many before, that may show a slow fall; of long series a sixth."""
MUCH_LARGER = 1.5
"""A slow fall is told instead of the last step if it is so many times as large."""
NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
ASSUMED_DEGREES = 1e9
"""Degrees of freedom of a noise that is assumed: Student's distribution is then the normal one."""


@dataclass(frozen=True)
class Limits:
    """The least differences of a quantity that count, in logarithms."""

    least_change: float
    """Levels that are closer than this are one level."""
    least_noise: float
    """Standard deviation that is assumed at the least."""
    assumed_noise: float | None = None
    """Standard deviation where no two values show any; None if a difference is then unknown."""


@dataclass
class Level:
    """Blocks of one level: the indices from `first` to `last`, both inclusive."""

    first: int
    last: int
    values: list[float]
    """One of each block that is not odd."""
    runs: int = 0

    @property
    def value(self) -> float:
        """Mean of the blocks."""
        return statistics.fmean(self.values)


class Difference(NamedTuple):
    """A later level over an earlier one, in logarithms, with half its 95 % interval."""

    value: float
    half_interval: float | None
    p_value: float
    """Two-sided, times the number of places at which a change can be."""

    @property
    def is_certain(self) -> bool:
        """True if chance explains the difference in less than LEVEL of the series."""
        return self.p_value < LEVEL


@dataclass(frozen=True)
class Noise:
    """The standard deviation of a block, with its degrees of freedom, in a series of so many places for a change."""

    deviation: float
    degrees: float
    places: int

    def limit(self, after: int, before: int) -> float:
        """Return the least difference between the means of so many blocks that chance does not explain."""
        from scipy.special import stdtrit

        quantile = -float(stdtrit(self.degrees, LEVEL / 2 / self.places))
        return quantile * self.deviation * math.sqrt(1 / after + 1 / before)

    def difference(self, before: Level, after: Level) -> Difference:
        """Return the difference of two levels (Student's t)."""
        from scipy.special import stdtr, stdtrit

        value = after.value - before.value
        error = self.deviation * math.sqrt(1 / len(before.values) + 1 / len(after.values))
        p_value = 2 * float(stdtr(self.degrees, -abs(value) / error)) * self.places
        half_interval = float(stdtrit(self.degrees, (1 + CONFIDENCE) / 2)) * error
        return Difference(value, half_interval, min(1.0, p_value))


@dataclass(frozen=True)
class Levels:
    """All levels of a series in the order of time, and the blocks that belong to none because they are odd."""

    blocks: Sequence[Sequence[float]]
    found: list[Level]
    odd: list[int]
    noise: Noise | None
    """None if no two values show any."""
    limits: Limits

    @property
    def resolution(self) -> float | None:
        """The smallest difference that one more block would show; None if the noise is unknown."""
        if self.noise is None:
            return None
        return max(self.limits.least_change, self.noise.limit(1, len(self.found[-1].values)))

    def difference(self, before: Level, after: Level) -> Difference:
        """Return the difference of two levels."""
        if self.noise is None:
            return Difference(after.value - before.value, None, 1.0)
        return self.noise.difference(before, after)

    def latest(self, band: float) -> tuple[Level, Level, Difference] | None:
        """Return an earlier level, the latest one, and their difference, which is beyond `band`; None if none is.

        The earlier level is the last one of which the difference is certain; if none is certain, the last one. A slow
        fall that adds up to much more comes first.
        """
        last = self.found[-1]
        beyond = []
        for level in reversed(self.found[:-1]):
            difference = self.difference(level, last)
            if abs(difference.value) > math.log1p(band):
                beyond.append((level, last, difference))
        # a certain change is worth more than a later one that chance may explain
        certain = [change for change in beyond if change[2].is_certain]
        least = MUCH_LARGER * abs(certain[0][2].value) if certain else math.log1p(band)
        fall = self._slow_fall()
        if fall is not None and fall[2].is_certain and abs(fall[2].value) > least:
            return fall
        return next(iter(certain or beyond), None)

    def _slow_fall(self) -> tuple[Level, Level, Difference] | None:
        """Return the last blocks and those of as many earlier ones that differ most from them; None of few blocks.

        Steps that are small beside the noise blur into a few levels. The noise here is that of the changes from block
        to block, whose mean is taken out.
        """
        places = [place for place in range(len(self.blocks)) if place not in self.odd]
        width = max(FEWEST_OF_FALL, len(places) // 6)
        if len(places) < 3 * width:
            return None
        values = [_centre(self.blocks[place]) for place in places]
        # a change has the noise of two blocks
        deviation = max(self.limits.least_noise, float(np.std(np.diff(values), ddof=1)) / math.sqrt(2))
        windows = []
        for start in range(len(places) - width + 1):
            members = places[start : start + width]
            runs = sum(len(self.blocks[place]) for place in members)
            windows.append(Level(members[0], members[-1], values[start : start + width], runs))
        *earlier, last = windows
        noise = Noise(deviation, len(values) - 2, len(earlier))
        first = max(earlier[: 1 - width], key=lambda window: abs(last.value - window.value))
        return first, last, noise.difference(first, last)


def find(blocks: Sequence[Sequence[float]], limits: Limits) -> Levels:
    """Return the levels of `blocks`, each the logarithms of its runs, in the order of time; at least one block."""
    values = [_centre(block) for block in blocks]
    noise = _noise(blocks, values, limits)
    levels = [Level(0, 0, [values[0]], len(blocks[0]))]
    odd = []
    for place in range(1, len(blocks)):
        level = levels[-1]
        shift = values[place] - level.value
        side = math.copysign(1.0, shift)
        shifts = [side * (value - level.value) for value in values[place : place + AHEAD]]
        # of an even number the lesser one, so that of two last blocks both must be beyond
        common = statistics.median_low(shifts)
        if noise is not None:
            count = len(level.values)
            # a block that is nearer to the old level is the last one of it, even if the next ones have changed
            if common > _limit(noise, limits, len(shifts), count) and abs(shift) > common / 2:
                level = Level(place, place, [])
                levels.append(level)
            elif abs(shift) > _limit(noise, limits, 1, count) and len(shifts) > 1:
                # the last block of a series is not odd yet: nobody knows whether it recovers
                odd.append(place)
                level.last = place
                continue
        level.last = place
        level.values.append(values[place])
        level.runs += len(blocks[place])
    return Levels(blocks, levels, odd, noise, limits)


def _limit(noise: Noise, limits: Limits, after: int, before: int) -> float:
    return max(limits.least_change, noise.limit(after, before))


def _centre(block: Sequence[float]) -> float:
    if len(block) >= ENOUGH_FOR_MEDIAN:
        return statistics.median(block)
    return statistics.fmean(block)


def _noise(blocks: Sequence[Sequence[float]], values: Sequence[float], limits: Limits) -> Noise | None:
    """Return the noise of a block: that of its runs, or that from block to block if there are enough and it is larger.

    The median of the changes from block to block is taken out, so that neither a few steps nor a slow fall count.
    """
    places = max(1, len(blocks) - 1)
    squares = [(value - statistics.fmean(block)) ** 2 for block in blocks for value in block]
    # runs of one day share its conditions, so their spread is the least that a block can have
    degrees = len(squares) - len(blocks)
    found = None
    if degrees:
        deviation = math.sqrt(math.fsum(squares) / degrees / statistics.median(map(len, blocks)))
        found = Noise(max(limits.least_noise, deviation), degrees, places)
    elif limits.assumed_noise:
        found = Noise(limits.assumed_noise, ASSUMED_DEGREES, places)
    if len(blocks) >= ENOUGH_BLOCKS:
        changes = np.diff(values)
        # robust against the changes of level that are looked for
        deviation = NORMAL_MAD * float(np.median(np.abs(changes - np.median(changes)))) / math.sqrt(2)
        if found is None or deviation > found.deviation:
            found = Noise(max(limits.least_noise, deviation), len(changes), places)
    return found
