"""Losses are compared seed by seed, and their intervals are those of the two t-tests."""

from __future__ import annotations

import warnings

import pytest
from scipy.stats import ttest_ind, ttest_rel

from evaluate.fairness.losses import matched
from evaluate.metrics.intervals import half_interval

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
