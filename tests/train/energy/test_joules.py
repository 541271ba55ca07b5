"""The arithmetic on samples, against numpy's own integration and numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from train.energy import joules


def test_power_over_time_is_numpys_trapezoidal_integral():
    random = np.random.default_rng(7)
    times = np.cumsum(random.uniform(0.05, 0.11, 500))
    watts = random.uniform(100, 700, 500)
    trapezoid = getattr(np, "trapezoid", None) or np.trapz
    assert joules.by_power(times, watts)[-1] == pytest.approx(trapezoid(watts, times), rel=1e-12)


def test_energy_between_two_samples_is_on_the_straight_line():
    times, energy = np.array([0.0, 1.0, 2.0]), np.array([0.0, 100.0, 400.0])
    # half of the first 100 J, and a quarter of the next 300 J
    assert joules.spent(times, energy, [(0.5, 1.25)]) == pytest.approx(50 + 75)
    assert joules.spent(times, energy, [(0.0, 0.25), (1.5, 2.0)]) == pytest.approx(25 + 150)


def test_counter_that_starts_again_goes_on_and_one_that_falls_elsewhere_was_reset():
    times = np.array([0.0, 1.0, 2.0])
    assert joules.by_counter(times, np.array([900.0, 990.0, 70.0]), 1.0, 1000.0).tolist() == [0.0, 90.0, 170.0]
    for counts, wraps in (([900.0, 990.0, 70.0], None), ([900.0, 990.0, 70.0], 8000.0), ([900.0, 990.0, 70.0], 500.0)):
        with pytest.raises(joules.JoulesError, match="was reset: it fell from 990.0 J to 70.0 J"):
            joules.by_counter(times, np.array(counts), 1.0, wraps)


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ([], "none of the steady steps were sampled"),
        ([1.0], "none of the steady steps were sampled"),
        ([1.5, 2.0, 2.9, 3.5], "the first 0.5 s of the steady steps were sampled"),
        ([0.9, 1.5, 2.0, 2.4], "the samples end 0.6 s before the last steady step"),
        ([0.9, 1.2, 2.5, 3.1], "a gap of 1.3 s between two samples"),
    ],
)
def test_samples_must_reach_over_all_steps(times, reason):
    steps = [(1.0, 2.0), (2.0, 3.0)]
    joules.require_cover(np.array([0.9, 1.5, 2.0, 2.4, 3.0]), steps)  # the honest twin is taken
    with pytest.raises(joules.JoulesError, match=reason):
        joules.require_cover(np.array(times), steps)


def test_steps_without_a_gap_become_one_interval_and_a_gap_is_left_out():
    # the third step was followed by a pause of 1 s
    assert joules.steady_intervals([1.0, 2.0, 3.0, 5.0, 6.0], [1.0] * 5, 1) == [(1.0, 3.0), (4.0, 6.0)]


def test_clock_must_rise():
    joules.require_rising([1.0, 1.1, 1.2])
    for times in ([1.0, 1.2, 1.1], [1.0, 1.0]):
        with pytest.raises(joules.JoulesError, match="goes back"):
            joules.require_rising(times)
