"""The interval of a median holds the true median in 95 % of all cases."""

import pytest
from scipy import stats

from train.probing.medians import LEAST_SAMPLES, median, order

# Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, table A.1: n, and the smaller order
PUBLISHED = {6: 1, 7: 1, 8: 1, 9: 2, 10: 2, 15: 4, 20: 6, 30: 10, 50: 18}


@pytest.mark.parametrize(("count", "wanted"), PUBLISHED.items())
def test_the_orders_are_those_of_the_published_table(count, wanted):
    assert order(count) == wanted


@pytest.mark.parametrize("count", [6, 9, 17, 100, 401, 3000])
def test_the_interval_covers_95_percent_and_the_next_narrower_one_does_not(count):
    k = order(count)
    covered = 1 - 2 * stats.binom.cdf(k - 1, count, 0.5)
    narrower = 1 - 2 * stats.binom.cdf(k, count, 0.5)
    assert covered >= 0.95 > narrower


def test_median_and_spread_of_samples_by_hand():
    found = median([9.0, 1.0, 2.0, 4.0, 3.0, 5.0, 6.0, 8.0, 7.0, 10.0])
    assert (found.seconds, found.low, found.high) == (5.5, 2.0, 9.0)
    assert found.spread_percent == pytest.approx(100 * 3.5 / 5.5)


def test_of_few_samples_the_interval_is_their_range():
    assert LEAST_SAMPLES == 6
    found = median([3.0, 1.0, 2.0])
    assert (found.seconds, found.low, found.high) == (2.0, 1.0, 3.0)
    assert median([2.0]).spread_percent == 0.0
