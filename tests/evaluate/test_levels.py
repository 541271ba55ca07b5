"""Levels of a series: found where they are, and not found in noise.

`false_alarms` and `power` give the numbers of docs/history.md with 1,000 trials, for the days and runs of its tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from scipy import stats

from evaluate.timeline import history
from evaluate.timeline.levels import Level, Limits, find
from evaluate.verdict.inference import BAND, LEAST_RUNS

LIMITS = Limits(0.01, 1e-4)
NOISE: dict[str, dict[str, Any]] = {
    "runs 1 %": {"of_run": 0.01},
    "runs 4 %": {"of_run": 0.04},
    "days 2 %, runs 1 %": {"of_run": 0.01, "of_day": 0.02},
    "heavy tails 3 %": {"of_run": 0.03, "heavy": True},
    "days 2 %, neighbours correlated by 0.5": {"of_run": 0.005, "of_day": 0.02, "correlation": 0.5},
}


def days(
    random: np.random.Generator,
    count: int,
    runs: int,
    of_run: float,
    of_day: float = 0.0,
    heavy: bool = False,
    correlation: float = 0.0,
) -> list[list[float]]:
    """Return logarithms of speeds, a list a day, around 0; standard deviations are relative."""
    shifts = [float(random.normal())]
    for _ in range(count - 1):
        shifts.append(correlation * shifts[-1] + math.sqrt(1 - correlation**2) * float(random.normal()))
    draw = (lambda: random.standard_t(3, runs) / math.sqrt(3)) if heavy else (lambda: random.normal(0, 1, runs))
    return [[of_day * shift + of_run * float(value) for value in draw()] for shift in shifts]


def is_alarm(blocks: list[list[float]]) -> bool:
    """Return whether the latest level is slower than the one before, by the rule of evaluate/timeline/history.py."""
    latest = find(blocks, history.LIMITS[history.SPEED]).latest(BAND)
    if latest is None:
        return False
    level, last, difference = latest
    return difference.value < 0 and difference.is_certain and min(last.runs, level.runs) >= LEAST_RUNS


def false_alarms(trials: int, count: int, runs: int, noise: Mapping[str, Any]) -> float:
    """Return the share of the trials without a change that raise an alarm."""
    random = np.random.default_rng([count, runs])
    return sum(is_alarm(days(random, count, runs, **noise)) for _ in range(trials)) / trials


def power(trials: int, count: int, first: int, runs: int, noise: Mapping[str, Any]) -> float:
    """Return the share of the trials with 5 % less speed from day `first` on that raise an alarm."""
    random = np.random.default_rng([count, first, runs])
    slower = np.where(np.arange(count) < first, 0.0, math.log(0.95))[:, None]
    return sum(is_alarm((slower + days(random, count, runs, **noise)).tolist()) for _ in range(trials)) / trials


def shifted(noise: float, *sizes: tuple[int, float], runs: int = 3, seed: int = 0) -> list[list[float]]:
    """Return blocks around levels: the number of blocks and the level of each."""
    blocks = days(np.random.default_rng(seed), sum(count for count, _ in sizes), runs, noise)
    centres = [level for count, level in sizes for _ in range(count)]
    return [[value + centre for value in block] for block, centre in zip(blocks, centres, strict=True)]


@pytest.mark.parametrize(
    "sizes",
    [
        *(((before, 0.0), (after, -0.06)) for before, after in ((7, 3), (9, 1), (5, 5), (1, 9), (3, 2))),
        ((5, 0.0), (4, -0.05), (6, 0.04)),
        ((6, 0.0), (3, -0.1), (6, 0.0)),  # three slow days are a level also when they end
    ],
)
def test_every_level_is_found_where_it_was_made(sizes: tuple[tuple[int, float], ...]) -> None:
    levels = find(shifted(0.003, *sizes), LIMITS).found
    ends = accumulate(count for count, _ in sizes)
    wanted = [(end, n, 3 * n, pytest.approx(value, abs=0.008)) for end, (n, value) in zip(ends, sizes, strict=True)]
    assert [(one.last + 1, one.last + 1 - one.first, one.runs, one.value) for one in levels] == wanted


def test_the_difference_is_that_of_students_t_test() -> None:
    """With one day on each side the noise is that of the runs: the pooled two-sample t-test of scipy."""
    blocks = [[0.01, -0.01], [-0.05, -0.07]]  # of two runs the mean counts
    levels = find(blocks, LIMITS)
    expected = stats.ttest_ind(blocks[1], blocks[0])
    difference = levels.difference(Level(0, 0, [0.0]), Level(1, 1, [-0.06]))
    assert difference.p_value == pytest.approx(expected.pvalue) and difference.half_interval is not None
    ends = difference.value - difference.half_interval, difference.value + difference.half_interval
    assert ends == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_with_few_days_their_runs_tell_the_noise() -> None:
    assert len(find(shifted(0.01, (1, 0.0), (1, -0.06), runs=5), LIMITS).found) == 2


@pytest.mark.parametrize("length", [1, 2])
def test_odd_days_that_recover_are_no_level(length: int) -> None:
    found = find(shifted(0.003, (6, 0.0), (length, -0.1), (6, 0.0)), LIMITS)
    assert found.odd == list(range(6, 6 + length))
    assert [(level.runs, level.value) for level in found.found] == [(36, pytest.approx(0.0, abs=0.003))]


QUIET = shifted(0.003, (10, 0.0))
SHIFTS = [*np.random.default_rng(5).normal(0, 0.03, 9), -0.05]


@pytest.mark.parametrize(
    ("blocks", "limits", "count"),
    [
        ([[1.0]] * 8, LIMITS, 1),
        ([[0.0], [-0.5]], LIMITS, 1),  # no spread is known
        ([[0.0], [-0.05]], Limits(1e-3, 5e-4, 5e-3), 2),  # an assumed noise decides between single runs
        # runs of a day agree, days differ by 3 %: a last day 5 % below is nothing special, however many runs it has
        ([[shift + 1e-4 * n for n in range(20)] for shift in SHIFTS], LIMITS, 1),
        ([*QUIET[:-1], [QUIET[-1][0] - 0.2, *QUIET[-1][1:]]], LIMITS, 1),  # one odd run of three does not move its day
    ],
)
def test_a_level_needs_a_difference_that_is_above_the_noise(
    blocks: list[list[float]], limits: Limits, count: int
) -> None:
    assert len(find(blocks, limits).found) == count


def test_the_resolution_is_the_change_that_one_more_day_shows() -> None:
    blocks = shifted(0.01, (12, 0.0))
    resolution, middle = find(blocks, LIMITS).resolution, float(np.mean([np.median(block) for block in blocks]))
    assert resolution is not None
    for factor, count in ((0.8, 1), (1.3, 2)):
        assert len(find([*blocks, [middle - factor * resolution] * 3], LIMITS).found) == count


@pytest.mark.parametrize("noise", ["runs 1 %", "runs 4 %", "days 2 %, runs 1 %", "heavy tails 3 %"])
@pytest.mark.parametrize("shape", [(5, 3), (10, 3), (20, 1), (60, 1)])
def test_noise_alone_hardly_ever_raises_an_alarm(noise: str, shape: tuple[int, int]) -> None:
    """At a rate of 1 %, more than 6 alarms in 150 trials have a chance of 1 in 2000."""
    limit = int(stats.binom.isf(5e-4, 150, 0.01))
    assert round(150 * false_alarms(150, *shape, NOISE[noise])) <= limit


@pytest.mark.parametrize(("of_run", "runs", "when"), [(0.01, 3, (10, 8)), (0.01, 1, (20, 15)), (0.02, 5, (20, 17))])
def test_5_percent_less_speed_with_a_few_runs_a_day_is_found(of_run: float, runs: int, when: tuple[int, int]) -> None:
    assert power(60, *when, runs, {"of_run": of_run}) >= 0.9


FALLS = {
    "20 % over 60 days": np.linspace(0, math.log(0.8), 60),
    "10 % over 30 days": np.linspace(0, math.log(0.9), 30),
    "stairs of 1 %": np.repeat(math.log(0.99) * np.arange(12), 5),
    "stairs of 0.5 %": np.repeat(math.log(0.995) * np.arange(12), 5),
    "five steps of 1 %, three days each": np.repeat(math.log(0.99) * np.arange(6), 3),
}


@pytest.mark.parametrize("name", FALLS)
@pytest.mark.parametrize("noise", [{"of_run": 0.005}, {"of_run": 0.01}, {"of_run": 0.005, "of_day": 0.005}])
def test_a_slow_fall_is_what_it_adds_up_to(name: str, noise: dict[str, float]) -> None:
    fall, random = FALLS[name], np.random.default_rng(7)
    for _ in range(10):
        blocks = [
            [value + part for value in block]
            for block, part in zip(days(random, len(fall), 3, **noise), fall, strict=True)
        ]
        latest = find(blocks, LIMITS).latest(0.03)
        assert latest is not None and latest[2].is_certain
        assert 1.25 * fall[-1] < latest[2].value < 0.5 * fall[-1]
        assert find([block[::-1] for block in days(random, len(fall), 3, **noise)], LIMITS).latest(0.03) is None
