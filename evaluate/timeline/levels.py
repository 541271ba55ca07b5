"""Levels of a quantity over time, found by change points, and a test of each change between two of them.

A block is the runs of one day with the same versions; its value is their mean, or their median from three runs on, so
that one odd run of three moves nothing. Change points over the blocks (evaluate/metrics/steady.py) are
candidates: two neighbouring levels are joined unless a t-test, corrected for the places at which a change can be
(Bonferroni), tells them apart. The unit of the test is the block, because the runs of one day share its conditions;
with fewer than ENOUGH_BLOCKS blocks, it is the run. All values are logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evaluate.metrics import steady

LEVEL = 0.01
"""Chance of a change, in a series without any, before the band: docs/history.md has the simulated rates."""
PENALTY = 3.0
"""Of the candidates: far below that of evaluate/metrics/steady.py, because each is tested afterwards."""
REACH = 2
"""Blocks on each side of the running median: up to two odd days in a row are no level of their own."""
FEWEST_FOR_ODD = 7
"""Blocks from which one can be odd: with fewer, leaving some out makes the others look too alike."""
ENOUGH_BLOCKS = 5
"""From so many on, the spread between blocks is known well enough to be the unit."""
ENOUGH_FOR_MEDIAN = 3
MUCH_LARGER = 1.5
FEWEST_OF_DRIFT = 4
"""Blocks at the end of a series, and as many before, that may show a slow fall; of long series a sixth."""
CONFIDENCE = 0.95


class Noise(NamedTuple):
    """The standard deviation of one value, with its degrees of freedom."""

    deviation: float
    degrees: float
    is_of_blocks: bool


@dataclass(frozen=True)
class Limits:
    """The least differences of a quantity that count, in logarithms."""

    least_change: float
    """Levels that are closer than this are one level."""
    least_noise: float
    """Standard deviation that is assumed at the least."""
    assumed_noise: float | None = None
    """Standard deviation where no two values show any; None if a difference is then unknown."""


@dataclass(frozen=True)
class Level:
    """Blocks of one level: the indices from `first` to `last`, both inclusive."""

    first: int
    last: int
    value: float
    """Mean logarithm of the blocks that are not odd."""
    runs: int


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
class Levels:
    """All levels of a series in the order of time, and the blocks that belong to none because they are odd."""

    blocks: tuple[tuple[float, ...], ...]
    found: tuple[Level, ...]
    odd: tuple[int, ...]
    limits: Limits

    @property
    def resolution(self) -> float | None:
        """The smallest difference that one more block of the usual number of runs would show; None if unknown."""
        parts = [_usable(level.first, level.last + 1, self.odd) for level in self.found]
        noise = _noise(self.blocks, parts, self.limits)
        if not noise.degrees:
            return None
        from scipy.special import stdtrit

        usual = 1.0 if noise.is_of_blocks else statistics.median(map(len, self.blocks))
        size = len(_units(self.blocks, parts[-1], noise.is_of_blocks))
        quantile = -float(stdtrit(min(noise.degrees, 1e9), LEVEL / 2 / len(self.blocks)))
        return max(self.limits.least_change, quantile * noise.deviation * math.sqrt(1 / usual + 1 / size))

    def difference(self, before: Level, after: Level) -> Difference:
        """Return the difference of two levels."""
        parts = [_usable(level.first, level.last + 1, self.odd) for level in self.found]
        noise = _noise(self.blocks, parts, self.limits)
        return _difference(self.blocks, parts[self.found.index(before)], parts[self.found.index(after)], noise)

    def latest(self, band: float) -> tuple[Level, Level, Difference] | None:
        """Return an earlier level, the latest one, and their difference, which is beyond `band`; None if none is.

        It is the last earlier level of which that is certain, unless `_drift` shows that a much larger change has added
        up; else the last one.
        """
        last, drift = self.found[-1], self._drift()
        earlier = [(one, last, self.difference(one, last)) for one in self.found[-2::-1]]
        beyond = [one for one in earlier if abs(one[2].value) > math.log1p(band)]
        found = next((one for one in beyond if one[2].is_certain), None)
        least = MUCH_LARGER * abs(found[2].value) if found else math.log1p(band)
        if drift and drift[2].is_certain and abs(drift[2].value) > least:
            return drift
        return found or (beyond[0] if beyond else None)

    def _drift(self) -> tuple[Level, Level, Difference] | None:
        """Return the last blocks and those of as many earlier ones that differ most from them; None of few blocks.

        A slow fall has no levels. Its noise is that from block to block, whose mean change is taken out; neighbours
        that are correlated (AR(1), by the correlation of the changes) leave less evidence.
        """
        places = _usable(0, len(self.blocks), self.odd)
        width = max(FEWEST_OF_DRIFT, len(places) // 6)
        if len(places) < 3 * width:
            return None
        values = np.array([_centre(self.blocks[place]) for place in places])
        changes = np.diff(values) - np.mean(np.diff(values))
        power = float(changes @ changes)
        correlation = 1 + 2 * float(changes[1:] @ changes[:-1]) / power if power else 0.0
        correlation = min(steady.HIGHEST_CORRELATION, max(0.0, correlation))
        degrees = len(changes) - 1
        variance = max(self.limits.least_noise**2, power / degrees / 2 / (1 - correlation))
        error = math.sqrt(2 * variance / width * (1 + correlation) / (1 - correlation))
        means = np.convolve(values, np.full(width, 1 / width), "valid")
        apart = means[-1] - means[:-width]
        first = int(np.argmax(np.abs(apart)))
        before, after = (
            Level(part[0], part[-1], float(means[start]), sum(len(self.blocks[place]) for place in part))
            for start, part in ((first, places[first : first + width]), (-1, places[-width:]))
        )
        return before, after, _tested(float(apart[first]), error, degrees, len(apart))


def find(blocks: Sequence[Sequence[float]], limits: Limits) -> Levels:
    """Return the levels of `blocks`, each the logarithms of its runs, in the order of time; at least one block."""
    centres = np.array([_centre(block) for block in blocks])
    smooth, odd = centres, tuple[int, ...]()
    if len(centres) >= FEWEST_FOR_ODD:
        smooth = steady.clipped(centres, REACH, limits.least_change)
        odd = tuple(int(place) for place in np.flatnonzero(smooth != centres))
    ends = steady.segment_ends(smooth, 1, PENALTY) if len(centres) > 1 else [1]
    ends = _confirmed(blocks, ends, odd, limits)
    levels = tuple(_level(blocks, start, end, odd) for start, end in zip([0, *ends[:-1]], ends, strict=True))
    return Levels(tuple(map(tuple, blocks)), levels, odd, limits)


def _confirmed(blocks: Sequence[Sequence[float]], ends: list[int], odd: Sequence[int], limits: Limits) -> list[int]:
    """Return the ends without those of levels that the test does not tell from the next one, the weakest first."""
    # a segment of odd blocks alone joins the one before
    ends = [*(a for a, b in zip(ends, ends[1:], strict=False) if _usable(a, b, odd)), ends[-1]]
    while len(ends) > 1:
        parts = [_usable(start, end, odd) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        noise = _noise(blocks, parts, limits)
        found = [_difference(blocks, a, b, noise) for a, b in zip(parts, parts[1:], strict=False)]
        weak = [n for n, one in enumerate(found) if not one.is_certain or abs(one.value) <= limits.least_change]
        if not weak:
            break
        del ends[max(weak, key=lambda n: (found[n].p_value, -abs(found[n].value)))]
    return ends


def _usable(start: int, end: int, odd: Sequence[int]) -> list[int]:
    return [place for place in range(start, end) if place not in odd]


def _centre(block: Sequence[float]) -> float:
    return statistics.median(block) if len(block) >= ENOUGH_FOR_MEDIAN else statistics.fmean(block)


def _level(blocks: Sequence[Sequence[float]], start: int, end: int, odd: Sequence[int]) -> Level:
    places = _usable(start, end, odd) or list(range(start, end))
    value = statistics.fmean(_centre(blocks[place]) for place in places)
    return Level(start, end - 1, value, sum(len(blocks[place]) for place in places))


def _noise(blocks: Sequence[Sequence[float]], parts: Sequence[Sequence[int]], limits: Limits) -> Noise:
    """Return the spread of blocks around their levels; of runs, if there are too few blocks."""
    is_of_blocks = len(blocks) >= ENOUGH_BLOCKS
    values = [np.array([value for value, _ in _units(blocks, part, is_of_blocks)]) for part in parts]
    residuals = np.concatenate([one - np.mean(one) for one in values])
    degrees = len(residuals) - len(parts)
    if degrees < 1:
        return Noise(limits.assumed_noise or 0.0, math.inf if limits.assumed_noise else 0.0, False)
    variance = float(residuals @ residuals) / degrees
    if is_of_blocks:
        variance *= steady.inflation(residuals)
    return Noise(max(limits.least_noise, math.sqrt(variance)), degrees, is_of_blocks)


def _units(blocks: Sequence[Sequence[float]], part: Sequence[int], is_of_blocks: bool) -> list[tuple[float, float]]:
    """Return the values of a level, each with its variance over that of a usual one.

    A block of fewer runs than usual has a larger variance.
    """
    if not is_of_blocks:
        return [(value, 1.0) for place in part for value in blocks[place]]
    usual = statistics.median(map(len, blocks))
    return [(_centre(blocks[place]), max(1.0, usual / len(blocks[place]))) for place in part]


def _difference(
    blocks: Sequence[Sequence[float]], before: Sequence[int], after: Sequence[int], noise: Noise
) -> Difference:
    """Return the difference of two levels of the same noise (Student's t)."""
    sides = [_units(blocks, part, noise.is_of_blocks) for part in (before, after)]
    first, second = (statistics.fmean(value for value, _ in side) for side in sides)
    value = second - first
    if not noise.degrees:
        return Difference(value, None, 1.0)
    error = noise.deviation * math.sqrt(sum(sum(size for _, size in side) / len(side) ** 2 for side in sides))
    return _tested(value, error, min(noise.degrees, 1e9), max(1, len(blocks) - 1))


def _tested(value: float, error: float, degrees: float, places: int) -> Difference:
    """Return a difference with its standard error, found at one of so many places."""
    from scipy.special import stdtr, stdtrit

    p_value = min(1.0, 2 * float(stdtr(degrees, -abs(value) / error)) * places)
    return Difference(value, float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * error, p_value)
