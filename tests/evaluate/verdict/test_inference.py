"""The interval is the textbook's where one exists, a single run has none, and each word needs its evidence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from evaluate.verdict.inference import (
    INTERVAL_LEVEL,
    PRODUCTS,
    THESE_MACHINES,
    Estimate,
    Run,
    adjusted,
    decide,
    estimate,
)
from evaluate.verdict.ratios import with_interval


def runs(machine: str, *logs: float) -> list[Run]:
    return [Run(machine, log) for log in logs]


def side(
    random: np.random.Generator, machines: int, count: int, machine_sd: float = 0.0, mean: float = 0.0, name: str = ""
) -> list[Run]:
    effects = random.normal(mean, machine_sd, machines)
    return [
        Run(f"{name}{place}", float(random.normal(effect, 0.003)))
        for place, effect in enumerate(effects)
        for _ in range(count)
    ]


def test_the_interval_of_equal_numbers_of_runs_is_scipys() -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(9.2, 0.003, 6), random.normal(9.25, 0.009, 6)
    found = estimate(runs("a", *a), runs("b", *b))
    expected = stats.ttest_ind(b, a, equal_var=False)
    interval = expected.confidence_interval(1 - INTERVAL_LEVEL)
    assert found.low is not None and found.high is not None
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((interval.low, interval.high))
    assert (found.p_value, found.degrees_of_freedom) == pytest.approx((expected.pvalue, expected.df))
    assert (found.scope, found.runs, found.machines) == (THESE_MACHINES, (6, 6), (1, 1))


def test_the_interval_over_machines_is_scipys_over_their_means() -> None:
    random = np.random.default_rng(4)
    sides = [side(random, 3, 4, 0.01, name="a"), side(random, 3, 7, 0.02, 0.05, name="b")]
    means = [
        [np.mean([run.log_throughput for run in one if run.machine == f"{name}{place}"]) for place in range(3)]
        for name, one in zip("ab", sides, strict=True)
    ]
    expected = stats.ttest_ind(means[1], means[0], equal_var=False)
    found = estimate(*sides)
    assert (found.p_value, found.degrees_of_freedom) == pytest.approx((expected.pvalue, expected.df))
    assert (found.scope, found.runs, found.machines) == (PRODUCTS, (12, 21), (3, 3))


def test_unequal_numbers_of_runs_are_wider_than_welchs_interval() -> None:
    a, b = (0.0, 0.001), (0.010, 0.013, 0.007, 0.011, 0.009, 0.012, 0.008, 0.010)
    found = estimate(runs("a", *a), runs("b", *b))
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(1 - INTERVAL_LEVEL)
    assert found.low is not None and found.high is not None
    assert math.log(found.high / found.low) > 1.3 * (expected.high - expected.low)


ON_THREE = runs("b0", 0.10) + runs("b1", 0.11, 0.13) + runs("b2", 0.20, 0.22, 0.24)
"""1, 2 and 3 runs on three machines: variances of their own runs cannot be known on the first."""


@pytest.mark.parametrize(
    ("b", "variance", "degrees", "mean"),
    [
        # machine means 0.10, 0.12, 0.22: deviations -7, -4, 11 of 0.1467 -> (0.0467^2 + 0.0267^2 + 0.0733^2) / 2 / 3
        (ON_THREE, (0.046667**2 + 0.026667**2 + 0.073333**2) / 6, 2, 0.146667),
        # variances of 0.0002 and 0.0008, each over 2 runs and over 2^2 machines; degrees (1 + 4)^2 / (1 + 16)
        (runs("b0", 0.10, 0.12) + runs("b1", 0.20, 0.24), (0.0002 + 0.0008) / 8, 25 / 17, 0.165),
    ],
    ids=["a single run on one", "several runs on each"],
)
def test_the_spread_of_a_side_is_of_its_machines(b: list[Run], variance: float, degrees: float, mean: float) -> None:
    found = estimate(runs("a", 0.0, 0.01, 0.02), b)
    spread = found.spreads[1]
    assert spread is not None
    assert (spread.variance, spread.degrees) == (pytest.approx(variance, rel=1e-4), pytest.approx(degrees))
    assert (found.scope, found.ratio) == (THESE_MACHINES, pytest.approx(math.exp(mean - 0.01), rel=1e-5))


def test_runs_that_agree_to_six_digits_are_copies_and_have_no_interval() -> None:
    copies = runs("b", 1.0, 1.0 + 1e-6, 1.0 - 1e-6)
    found = estimate(runs("a", 0.9, 0.9003, 0.8998), copies)
    assert found.low is None and "as copies of one run are" in found.sides_without_spread[0][1]
    assert decide(found, None)[0] == "undecided"
    twin = estimate(runs("a", 0.9, 0.9003, 0.8998), runs("b", 1.0, 1.0002, 0.9998))
    assert decide(twin, twin.p_value)[0] == "faster"


def test_swapping_the_sides_inverts_the_ratio() -> None:
    random = np.random.default_rng(6)
    a, b = side(random, 1, 5, name="a"), side(random, 1, 6, mean=0.1, name="b")
    there, back = estimate(a, b), estimate(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert {decide(there, there.p_value)[0], decide(back, back.p_value)[0]} == {"faster", "slower"}


def found(ratio: float, half: float, p_value: float, count: int = 5) -> Estimate:
    return Estimate(ratio, ratio - half, ratio + half, p_value, 8.0, THESE_MACHINES, (count, count), (1, 1))


@pytest.mark.parametrize(
    ("ratio", "half", "p_value", "word", "reason"),
    [
        (1.10, 0.01, 1e-6, "faster", ""),
        (0.90, 0.01, 1e-6, "slower", ""),
        (1.05, 0.04, 0.02, "faster", "the interval reaches into the band of 3.0%"),
        (1.01, 0.005, 1e-3, "tie", "the whole interval lies in the band of 3.0%"),
        (1.05, 0.08, 0.2, "undecided", "a difference this large may be chance with so few runs"),
        (1.02, 0.03, 0.1, "undecided", "no difference beyond 3.0% was found, and one is not ruled out"),
    ],
)
def test_the_word_and_its_reason(ratio: float, half: float, p_value: float, word: str, reason: str) -> None:
    assert decide(found(ratio, half, p_value), p_value) == (word, reason)


EDGE = 1.03
"""The end of a band of 3 %."""


@pytest.mark.parametrize(
    ("ratio", "low", "high", "p_value", "count", "word"),
    [
        (1.0, 1 / EDGE, EDGE, 0.5, 5, "tie"),
        (1.0, 1 / EDGE - 1e-9, EDGE, 0.5, 5, "undecided"),
        (1.0, 1 / EDGE, EDGE + 1e-9, 0.5, 5, "undecided"),
        (EDGE - 1e-9, 1.02, 1.04, 1e-6, 5, "undecided"),
        (EDGE + 1e-9, 1.02, 1.04, 1e-6, 5, "faster"),
        (1.1, 1.02, 1.2, 0.03, 5, "undecided"),  # the level itself is not below it
        (1.1, 1.02, 1.2, 0.03 - 1e-9, 5, "faster"),
        (1.1, 1.05, 1.15, 1e-6, 2, "undecided"),
        (1.1, 1.05, 1.15, 1e-6, 3, "faster"),
    ],
)
def test_the_edges_of_tie_level_and_number_of_runs(
    ratio: float, low: float, high: float, p_value: float, count: int, word: str
) -> None:
    edge = Estimate(ratio, low, high, p_value, 8.0, THESE_MACHINES, (count, 5), (1, 1))
    assert decide(edge, p_value)[0] == word


@pytest.mark.parametrize(
    ("p_values", "wanted"),
    [
        ([0.04, 0.01, 0.03, 0.02], [0.06, 0.04, 0.06, 0.06]),  # x 1, 4, 2, 3, each at least the one before
        ([0.9, 0.8], [1.0, 1.0]),
        ([], []),
        ([0.01, None, 0.02], [0.02, None, 0.02]),  # a pair without a p-value does not count
    ],
)
def test_the_correction_is_the_textbooks(p_values: list[float | None], wanted: list[float | None]) -> None:
    pairs = [replace(found(1.1, 0.01, 1.0), p_value=one) for one in p_values]
    assert adjusted(pairs) == [one if one is None else pytest.approx(one) for one in wanted]


# A ratio is written in one form.


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text"),
    [
        (1.1037, 1.0806, 1.1211, "1.10x (1.08 to 1.12)"),
        (1.112, 1.1118, 1.1124, "1.1120x (1.1118 to 1.1124)"),
        (0.998, 0.995, 1.001, "0.998x (0.995 to 1.001)"),
        (152.9, 140.0, 160.0, "153x (140 to 160)"),
        (0.00123, 0.0011, 0.0013, "0.00123x (0.00110 to 0.00130)"),
        (1.0, 1.0, 1.0, "1.00x (1.00 to 1.00)"),
        (1.104, None, None, "1.10x"),
        (0.0004, None, None, "0.000400x"),
    ],
)
def test_a_ratio_has_three_digits_and_more_where_its_interval_is_narrow(
    ratio: float, low: float | None, high: float | None, text: str
) -> None:
    assert with_interval(ratio, low, high) == text
