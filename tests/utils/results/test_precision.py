"""The number of runs of a job follows from how well the runs so far know the mean, and a failing job ends early."""

import math

import pytest
from scipy import stats

from utils.results.precision import LEAST_RUNS, MOST_RUNS, T_975, RunsRule, half_width, rates

AUTO = RunsRule.of(None)


def spread(count, relative):
    """Rates whose logarithms are `count` values of mean 0, half of them above and half below, with this deviation."""
    signs = [(-1) ** number for number in range(count)]
    center = sum(signs) / count
    size = math.sqrt(sum((sign - center) ** 2 for sign in signs) / (count - 1))
    return [1000 * math.exp(relative * (sign - center) / size) for sign in signs]


def test_table_of_students_t_is_that_of_scipy():
    assert [round(stats.t.ppf(0.975, degrees), 3) for degrees in range(1, MOST_RUNS)] == list(T_975)


def test_half_width_of_three_runs_worked_by_hand():
    # logarithms -0.01, 0, 0.01: s = 0.01; 4.303 * 0.01 / sqrt(3) = 0.024843; e^0.024843 - 1 = 0.025155
    assert half_width([math.exp(-0.01), 1.0, math.exp(0.01)]) == pytest.approx(0.025155, abs=2e-6)


@pytest.mark.parametrize("given", [[16384.0, 16500.0], [100.0, 103.0, 99.0, 101.5], [5.0, 5.01, 4.99, 5.02, 4.98] * 2])
def test_half_width_is_that_of_scipys_interval_of_the_logarithms(given):
    logs = [math.log(rate) for rate in given]
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=0.0, scale=stats.sem(logs))
    assert half_width(given) == pytest.approx(math.exp(high) - 1, rel=1e-3) and -low == pytest.approx(high)


def test_half_width_does_not_depend_on_the_unit_and_is_unknown_for_one_run():
    given = [900.0, 910.0, 905.0]
    assert half_width(given) == pytest.approx(half_width([rate / 7 for rate in given]))
    assert half_width([900.0]) is None and half_width([]) is None
    assert half_width([900.0] * 3) == 0


# three runs: the limit is s = ln(1.01) sqrt(3) / 4.303 = 0.4005 %; ten runs: ln(1.01) sqrt(10) / 2.262 = 1.391 %
@pytest.mark.parametrize(
    ("given", "goes_on"),
    [
        ([], True),
        (spread(2, 1e-9), True),
        (spread(3, 0.00400), False),
        (spread(3, 0.00401), True),
        (spread(9, 0.02), True),
        (spread(10, 0.0139), False),
        (spread(10, 0.2), False),
    ],
)
def test_auto_stops_from_three_runs_on_when_the_mean_is_known_and_at_ten_in_any_case(given, goes_on):
    decision = AUTO.decide(given)
    assert decision.goes_on is goes_on
    assert f"{len(given)} run" in decision.why
    assert (LEAST_RUNS, MOST_RUNS) == (3, 10)


def test_reason_names_the_width_that_was_reached_and_the_limit_that_ended_the_runs():
    assert AUTO.decide(spread(3, 0.002)).why == "3 runs, mean known within +-0.5 % (95 %)"
    assert AUTO.decide(spread(3, 0.01)).why == "3 runs, mean known within +-2.5 % (95 %), +-1 % wanted"
    # 2.262 * 0.02 / sqrt(10) = 0.014306; e^0.014306 - 1 = 1.44 %
    assert AUTO.decide(spread(10, 0.02)).why == "10 runs, mean known within +-1.4 % (95 %); 10 runs are the most"


@pytest.mark.parametrize(
    ("good", "failed", "goes_on"),
    [(0, 1, True), (2, 1, True), (0, 2, False), (1, 2, False), (3, 1, False), (9, 1, False), (5, 0, False)],
)
def test_one_failed_run_is_replaced_and_two_end_the_job(good, failed, goes_on):
    decision = AUTO.decide(spread(good, 0.0001) if good > 1 else [1.0] * good, failed)
    assert decision.goes_on is goes_on
    assert failed == 0 or f"{failed} failed" in decision.why


def test_ten_tries_are_the_most_also_when_one_of_them_failed():
    assert AUTO.decide(spread(8, 0.2), 1).goes_on
    assert not AUTO.decide(spread(9, 0.2), 1).goes_on


def test_a_number_of_runs_depends_on_no_result():
    rule = RunsRule.of(5)
    assert rule.is_fixed and not AUTO.is_fixed
    assert [rule.decide([1.0] * count).goes_on for count in (1, 3, 4, 5)] == [True, True, True, False]
    assert rule.decide([], 4).goes_on, "a job that fails is tried as often as was asked"
    assert not rule.decide([], 5).goes_on


def test_rates_are_those_of_ok_results():
    def result(status, rate):
        return {"status": status, "performance_metrics": {"tokens_per_second_per_gpu": rate}}

    assert rates([result("ok", 5.0), result("failed", 7.0), result("ok", None), result("ok", 0.0)]) == [5.0]
