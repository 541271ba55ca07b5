"""The steady part of a run begins with its last level; odd steps are flagged and do not move it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.stats import theilslopes

from evaluate.metrics import steady
from evaluate.metrics.steady import Steady, find, steps_text
from example import example_result


def noisy(
    levels: list[tuple[int, float]], deviation: float = 0.01, correlation: float = 0.0, seed: int = 1
) -> list[float]:
    """Return step times at levels of `(steps, seconds)`, with a relative deviation that may be autocorrelated."""
    random = np.random.default_rng(seed)
    means = np.concatenate([np.full(count, seconds) for count, seconds in levels])
    noise = random.normal(0, deviation * np.sqrt(1 - correlation**2), len(means))
    for place in range(1, len(noise)):
        noise[place] += correlation * noise[place - 1]
    return list(means * np.exp(noise))


@pytest.mark.parametrize(
    ("levels", "label", "first"),
    [
        ([(500, 1.0)], "flat", 10),
        ([(40, 1.3), (460, 1.0)], "warm-up", 40),
        ([(40, 1.3), (40, 1.1), (420, 1.0)], "warm-up", 80),
        ([(300, 1.0), (200, 1.05)], "slow-down", 300),
        ([(40, 1.3), (260, 1.0), (200, 1.08)], "slow-down", 300),
        ([(420, 1.0), (80, 1.2)], "no steady state", 10),
        ([(8, 1.5), (22, 1.0)], "warm-up", 8),
        # short and long steps alike
        *(([(40, 1.3 * seconds), (460, seconds)], "warm-up", 40) for seconds in (0.02, 30.0)),
        *(([(300, seconds), (200, 1.05 * seconds)], "slow-down", 300) for seconds in (0.02, 30.0)),
    ],
)
def test_the_last_level_is_the_steady_one(levels: list[tuple[int, float]], label: str, first: int) -> None:
    least = 3 if sum(count for count, _ in levels) < 100 else 10
    found = find(tuple(noisy(levels)), least)
    assert (found.label, found.first) == (label, pytest.approx(first, abs=2))


def divisions(count: int, shortest: int) -> Iterator[list[int]]:
    """Yield the ends of every division of so many values into segments of `shortest` or more."""
    yield [count]
    for end in range(shortest, count - shortest + 1):
        yield from ([end, *(end + rest for rest in others)] for others in divisions(count - end, shortest))


def best_division(row: Any, penalty: float) -> list[int]:
    """Return the ends with the least sum of squares plus the penalty for each segment, by trying every division."""

    def cost(ends: list[int]) -> float:
        parts = np.split(row, ends[:-1])
        return float(sum(((part - part.mean()) ** 2).sum() for part in parts) + penalty * len(parts))

    return min(divisions(len(row), 3), key=cost)


@pytest.mark.parametrize("change", [0.0, 3.0, 9.0])
def test_the_segments_are_those_of_the_best_of_all_divisions(change: float) -> None:
    random = np.random.default_rng(3)
    counts = set()
    for _ in range(40):
        row = random.normal(size=random.integers(9, 19))
        row[len(row) // 2 :] += change
        ends = best_division(row, np.log(len(row)) * np.var(np.diff(row)) / 2)
        if len(ends) > 1:  # once more, with the variance around these segments
            residuals = np.concatenate([part - part.mean() for part in np.split(row, ends[:-1])])
            variance = residuals @ residuals / len(row) * steady.inflation(residuals)
            ends = best_division(row, np.log(len(row)) * variance)
        assert steady.segment_ends(row, 3, 1.0) == ends
        counts.add(len(ends))
    assert len(counts) > 1, "some rows have other numbers of segments"


@pytest.mark.parametrize("seed", range(20))
def test_noise_that_follows_itself_is_no_change(seed: int) -> None:
    assert find(tuple(noisy([(400, 0.8)], correlation=0.8, seed=seed)), 10).label == "flat"


def test_odd_steps_are_flagged_and_move_nothing() -> None:
    times = [4.0 if place in (50, 51, 120) else time for place, time in enumerate(noisy([(200, 1.0)]))]
    found = find(tuple(times), 10)
    assert (found.label, found.first, found.outliers) == ("flat", 10, (50, 51, 120))


def test_a_chip_that_becomes_slower_all_along_is_drifting() -> None:
    slightly, clearly = (
        find(tuple(np.array(noisy([(300, 1.0)], deviation=0.002)) * np.linspace(1, end, 300)), 10)
        for end in (1.009, 1.03)
    )
    assert not slightly.is_drifting and (clearly.label == "slow-down" or clearly.is_drifting)
    # the slope of a straight line is exact
    assert find(tuple(np.linspace(1, 1.015, 300)), 0).drift == pytest.approx(0.015, rel=0.35)


@pytest.mark.parametrize("count", [10, 49, 50, 51, 75, 99, 450])
def test_the_drift_is_theil_and_sens_slope_over_blocks_of_steps(count: int) -> None:
    times = np.array(noisy([(count, 1.0)], seed=count)) * np.linspace(1, 1.005, count)
    blocks = np.array_split(np.log(times), min(50, count))
    places = np.cumsum([len(block) for block in blocks]) - np.array([len(block) / 2 for block in blocks])
    slope = theilslopes([np.median(block) for block in blocks], places).slope
    found = find(tuple(times), 0)
    assert (found.first, found.drift) == (0, pytest.approx(np.expm1(slope * count), rel=1e-9))


@pytest.mark.parametrize(("steps", "label", "drift"), [(12, "no steady state", None), (60, "flat", 0.0)])
def test_equal_steps_are_flat_and_a_few_have_no_steady_state(steps: int, label: str, drift: float | None) -> None:
    assert find((1.0,) * steps, 3) == Steady(3, label, (), drift)


def test_too_few_steps_for_two_levels_are_neither_odd_nor_drifting() -> None:
    assert find((1.0,) * 8 + (9.0,), 0) == Steady(0, "no steady state", (), None)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([60], "steps 7 to 60"),
        ([60, 60, 80], "steps 7 to 60 (2 runs), 9 to 80 (1 run)"),
        ([60, 80, 90], "steps 7 to 60 (1 run), 9 to 80 (1 run), 10 to 90 (1 run)"),
        ([60, 80, 90, 100], "steps from 7 to 11 on, of 100"),
        ([0], "no steady steps"),
    ],
)
def test_steady_steps_are_written_by_their_numbers(counts: list[int], said: str) -> None:
    assert steps_text([example_result(steps=[*range(1, n + 1)], step_times=[1.0] * n) for n in counts]) == said
