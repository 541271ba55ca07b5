"""Losses are compared seed by seed, and their intervals are those of the two t-tests."""

from __future__ import annotations

import warnings

import pytest
from scipy.stats import ttest_ind, ttest_rel

from evaluate.fairness import by_seed, certificate

A, B = [3.10, 3.14, 3.12, 3.20], [3.11, 3.19, 3.13]


def test_the_interval_of_one_seed_is_welchs() -> None:
    interval = ttest_ind(A, B, equal_var=False).confidence_interval(0.9)
    assert certificate._half_interval(A, B) == pytest.approx((interval.high - interval.low) / 2)


def test_the_interval_of_several_seeds_is_that_of_the_paired_test() -> None:
    pairs = list(zip(A, [3.12, 3.15, 3.16, 3.19], strict=True))
    interval = ttest_rel([b for _, b in pairs], [a for a, _ in pairs]).confidence_interval(0.9)
    assert by_seed.half_interval(pairs) == pytest.approx((interval.high - interval.low) / 2)


def test_equal_losses_give_no_interval_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert certificate._half_interval([3.1] * 3, [3.1 + 1e-15] * 3) == pytest.approx(0, abs=1e-12)


def test_each_seed_is_matched_with_itself() -> None:
    # seed 2 ran twice on one side: the mean of its runs counts once
    assert by_seed.matched([3.0, 4.0], [4.2, 4.0, 3.1], [1, 2], [2, 2, 1]) == [(3.0, 3.1), (4.0, pytest.approx(4.1))]
    assert by_seed.matched([3.0, 4.0], [3.1, 4.1], [1, 2], [1, 3]) == [(3.5, pytest.approx(3.6))]
