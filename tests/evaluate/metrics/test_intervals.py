"""The critical value covers the truth with any numbers of values and any two variances; its p-value is its inverse."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats
from scipy.special import stdtr
from scipy.stats import ttest_ind, ttest_rel

from evaluate.fairness.early import matched
from evaluate.metrics.intervals import critical_value, half_interval, p_value

SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
"""The share of the first side in the variance of the difference."""
LEFT_OUT = 1e-5


def coverage(degrees: tuple[int, int], share: float, level: float) -> float:
    """Return the exact coverage for normal values.

    With independent chi-squares x and y of the two sides, u = x / (x + y) is a beta variable that is independent of
    x + y. Given u, the difference over sqrt(x + y) is Student's with all degrees of freedom, and the ratio of the two
    estimated variances is known, so that one integral over u remains.
    """
    total = sum(degrees)
    edges = np.concatenate(
        [np.logspace(-14, -2, 200), np.linspace(0.01, 0.99, 300)[1:-1], 1 - np.logspace(-2, -14, 200)]
    )
    u = (edges[1:] + edges[:-1]) / 2
    weights = np.diff(stats.beta.cdf(edges, degrees[0] / 2, degrees[1] / 2))
    estimated = (share * u / degrees[0], (1 - share) * (1 - u) / degrees[1])
    scale = critical_value(level, estimated, degrees) * np.sqrt(total * sum(estimated))
    assert weights.sum() > 1 - 10 * LEFT_OUT
    return float(np.sum(weights * (1 - 2 * stdtr(total, -scale))))


NUMBERS = [(n, n) for n in (2, 3, 4, 5, 7, 10, 20)]
NUMBERS += [(few, many) for few in (2, 3, 4, 5, 10) for many in (3, 4, 5, 6, 10, 20) if few < many]


@pytest.mark.parametrize("numbers", NUMBERS)
def test_the_exact_coverage_lies_between_94_and_98_and_a_half_percent(numbers: tuple[int, int]) -> None:
    degrees = numbers[0] - 1, numbers[1] - 1
    covers = [coverage(degrees, share, 0.05) for share in SHARES]
    assert min(covers) >= 0.9375 and max(covers) <= 0.987
    assert max(covers) <= 0.98 or min(numbers) == 2, "only two values on a side are conservative"
    assert 1 - min(coverage(degrees, share, 0.035) for share in SHARES) <= 0.05


def test_a_side_with_far_fewer_values_gives_nearly_cochrans_and_coxs() -> None:
    # equal variances of the means: (12.706 + 2.093) / 2 = 7.400 by a table of Student's t with 1 and 19 degrees
    cochran = 7.400
    satterthwaite = stats.t.ppf(0.975, 1 / (0.25 / 1 + 0.25 / 19))
    expected = (18 * cochran + satterthwaite) / 19
    assert critical_value(0.05, (1.0, 1.0), (1, 19)) == pytest.approx(expected, rel=1e-4)
    assert critical_value(0.05, (1.0, 1.0), (19, 1)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("level", [0.4, 0.05, 1e-3, 1e-12])
def test_the_p_value_of_a_just_significant_difference_is_its_level(level: float) -> None:
    variances, degrees = (1.0, 0.2), (2, 9)
    difference = critical_value(level, variances, degrees) * np.sqrt(1.2)
    assert p_value(-difference, variances, degrees) == pytest.approx(level, rel=1e-6)


def test_no_difference_has_a_p_value_of_1() -> None:
    assert p_value(0.0, (1.0, 2.0), (4, 4)) == pytest.approx(1.0)


# Losses are compared seed by seed, and their intervals are those of the two t-tests.

A, B, PAIRED = [3.10, 3.14, 3.12, 3.20], [3.11, 3.19, 3.13], [3.12, 3.15, 3.16, 3.19]


def test_the_intervals_are_those_of_welchs_and_of_the_paired_test() -> None:
    differences = [b - a for a, b in zip(A, PAIRED, strict=True)]
    for groups, test in (([A, B], ttest_ind(A, B, equal_var=False)), ([differences], ttest_rel(PAIRED, A))):
        interval = test.confidence_interval(0.9)
        assert half_interval(groups, 0.1) == pytest.approx((interval.high - interval.low) / 2)


def test_equal_losses_give_no_interval_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert half_interval([[3.1] * 3, [3.1 + 1e-15] * 3], 0.1) == pytest.approx(0, abs=1e-12)


def test_each_seed_is_matched_with_itself() -> None:
    # seed 2 ran twice on one side: the mean of its runs counts once
    assert matched([[3.0, 4.0], [4.2, 4.0, 3.1]], [[1, 2], [2, 2, 1]]) == [(3.0, 3.1), (4.0, pytest.approx(4.1))]
    assert matched([[3.0, 4.0], [3.1, 4.1]], [[1, 2], [1, 3]]) == [(3.5, pytest.approx(3.6))]
