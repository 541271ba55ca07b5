"""Intervals cover the truth at their nominal rate, differences are found, and chance is not called a difference."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from evaluate.verdict.inference import (
    PRODUCTS,
    THESE_MACHINES,
    THESE_RUNS,
    Estimate,
    Run,
    decide,
    estimate,
    holm,
    variance_within,
)

TRIALS = 1000
RUN_CV = 0.003


STEPS, STEP_CV, STEP_CORRELATION = 100, 0.005, 0.7
OF_STEPS = STEP_CV * math.sqrt((1 + STEP_CORRELATION) / (1 - STEP_CORRELATION) / STEPS)
"""Deviation of the mean of this many correlated steps; RUN_CV includes it."""


def logs(
    random: np.random.Generator, trials: int, machines: int, runs: int, machine_sd: float, mean: float = 0.0
) -> npt.NDArray[np.float64]:
    """Return logarithms of throughput [trials, machines, runs] with effects of machine, run and correlated steps."""
    shape = (trials, machines, runs)
    noise = random.normal(0, STEP_CV * math.sqrt(1 - STEP_CORRELATION**2), (STEPS, *shape))
    noise[0] /= math.sqrt(1 - STEP_CORRELATION**2)
    for step in range(1, STEPS):
        noise[step] += STEP_CORRELATION * noise[step - 1]
    of_runs = math.sqrt(RUN_CV**2 - OF_STEPS**2)
    effects = random.normal(0, machine_sd, (trials, machines, 1)) + random.normal(0, of_runs, shape)
    found: npt.NDArray[np.float64] = mean + effects - np.log(np.exp(noise).mean(axis=0))
    return found


def as_runs(name: str, values: npt.NDArray[np.float64]) -> list[Run]:
    return [Run(f"{name}{machine}", float(value)) for machine, runs in enumerate(values) for value in runs]


def side(
    random: np.random.Generator, machines: int, runs: int, machine_sd: float = 0.0, mean: float = 0.0, name: str = ""
) -> list[Run]:
    return as_runs(name, logs(random, 1, machines, runs, machine_sd, mean)[0])


def trials(machines: int, runs: int, machine_sds: tuple[float, float], difference: float = 0.0) -> list[Estimate]:
    random = np.random.default_rng([machines, runs, *(round(1e4 * sd) for sd in machine_sds), round(1e4 * difference)])
    a = logs(random, TRIALS, machines, runs, machine_sds[0])
    b = logs(random, TRIALS, machines, runs, machine_sds[1], math.log1p(difference))
    return [estimate(as_runs("a", left), as_runs("b", right)) for left, right in zip(a, b, strict=True)]


def share_of_verdicts(found: list[Estimate], band: float) -> float:
    return float(np.mean([decide(one, one.p_value, band).word != "tie" for one in found]))


ONE_MACHINE = [(1, 5, (0.0, 0.0)), (1, 10, (0.0, 0.0))]
SEVERAL = [(machines, 5, (sd, sd)) for sd in (0.008, 0.023) for machines in (2, 3, 5)]
UNEQUAL = [(machines, 3, (0.008, 0.023)) for machines in (2, 3, 5)]
"""Machines, runs on each, and the spread between machines of one product in MLPerf Training v5.1 (B200, MI355X)."""


@pytest.mark.parametrize(("machines", "runs", "machine_sds"), ONE_MACHINE + SEVERAL + UNEQUAL)
def test_intervals_cover_the_truth_and_chance_is_no_difference(
    machines: int, runs: int, machine_sds: tuple[float, float]
) -> None:
    found = trials(machines, runs, machine_sds, difference=0.02)
    assert 0.93 <= np.mean([one.low <= 1.02 <= one.high for one in found]) <= 0.98
    assert {one.scope for one in found} == {PRODUCTS if machines > 1 else THESE_MACHINES}
    same = trials(machines, runs, machine_sds)
    assert share_of_verdicts(same, band=0.0) <= 0.05
    assert share_of_verdicts(same, band=0.03) <= 0.05


def test_a_true_difference_of_5_percent_is_found_with_5_runs_a_side() -> None:
    found = trials(1, 5, (0.0, 0.0), difference=0.05)
    assert share_of_verdicts(found, band=0.03) > 0.9
    assert all(decide(one, one.p_value).word != "slower" for one in found)
    assert np.median([one.high / one.ratio - 1 for one in found]) == pytest.approx(0.0044, abs=0.0005)


def steps(random: np.random.Generator, correlation: float = 0.7, count: int = 200) -> tuple[float, ...]:
    """Return correlated step times around 1 s: an autoregression with a deviation of 1 %."""
    noise = random.normal(0, 0.01 * math.sqrt(1 - correlation**2), count)
    for place in range(1, count):
        noise[place] += correlation * noise[place - 1]
    return tuple(np.exp(noise).tolist())


def test_one_run_a_side_applies_to_these_runs_and_respects_correlated_steps() -> None:
    random = np.random.default_rng(7)
    covered, naive = [], []
    for _ in range(300):
        times = [steps(random), steps(random)]
        logs = [-math.log(np.mean(one)) for one in times]
        found = estimate(*([Run(name, log, one)] for name, log, one in zip("ab", logs, times, strict=True)))
        assert found.scope == THESE_RUNS and found.is_one_run
        covered.append(found.low <= 1 <= found.high)
        interval = stats.ttest_ind(np.log(times[0]), np.log(times[1])).confidence_interval()
        naive.append(interval.low <= 0 <= interval.high)
    assert np.mean(covered) > 0.85
    assert np.mean(naive) < 0.7, "steps counted as independent would be far too sure"


def test_single_runs_that_differ_as_restarts_do_are_no_difference_even_without_a_band() -> None:
    random = np.random.default_rng(9)
    words = []
    for _ in range(TRIALS):
        logs = random.normal(0, RUN_CV, 2)
        times = [tuple(np.exp(random.normal(-log, 0.001, 30)).tolist()) for log in logs]
        found = estimate(*([Run(name, log, one)] for name, log, one in zip("ab", logs, times, strict=True)))
        words.append(decide(found, found.p_value, band=0).word)
    assert np.mean([word != "tie" for word in words]) <= 0.05


def test_the_interval_of_sides_with_unequal_numbers_of_runs_is_scipys() -> None:
    random = np.random.default_rng(3)
    a, b = random.normal(9.2, 0.003, 5), random.normal(9.25, 0.009, 8)
    found = estimate([Run("a", value) for value in a], [Run("b", value) for value in b])
    expected = stats.ttest_ind(b, a, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((interval.low, interval.high))
    assert (found.p_value, found.degrees_of_freedom) == pytest.approx((expected.pvalue, expected.df))
    assert (found.scope, found.runs, found.machines) == (THESE_MACHINES, (5, 8), (1, 1))


def test_the_interval_over_machines_is_scipys_over_their_means() -> None:
    random = np.random.default_rng(4)
    sides = [side(random, 3, 4, 0.01, name="a"), side(random, 2, 7, 0.02, 0.05, name="b")]
    means = [np.mean([run.log_throughput for run in one]) for one in (sides[0][:4], sides[0][4:8], sides[0][8:])]
    others = [np.mean([run.log_throughput for run in one]) for one in (sides[1][:7], sides[1][7:])]
    expected = stats.ttest_ind(others, means, equal_var=False)
    found = estimate(*sides)
    assert (found.p_value, found.degrees_of_freedom) == pytest.approx((expected.pvalue, expected.df))
    assert (found.scope, found.runs, found.machines) == (PRODUCTS, (12, 14), (3, 2))


# Five values with deviations -2 -1 0 1 2 have a variance of 2.5, so their mean one of 0.5
@pytest.mark.parametrize(
    ("factor", "degrees"),
    [
        (3, 600 / 82 - 2),  # variances of 1 and 9 halves: 10^2 / ((1 + 81) / (4 + 2)) - 2
        (1, 8.0),  # equal ones: 2^2 / (2 / 6) - 2 = 10, and there are no more than 4 + 4
        (1000, 4.0),  # one side alone varies: 1 / (1 / 6) - 2
    ],
)
def test_degrees_of_freedom_of_equal_numbers_by_hand(factor: float, degrees: float) -> None:
    deviations = (-0.002, -0.001, 0.0, 0.001, 0.002)
    sides = [[Run(name, size * one) for one in deviations] for name, size in (("a", 1), ("b", factor))]
    found = estimate(*sides)
    assert found.degrees_of_freedom == pytest.approx(degrees, rel=1e-4)
    half = stats.t.ppf(0.975, degrees) * math.sqrt((1 + factor**2) * 0.5e-6)
    assert math.log(found.high) == pytest.approx(half, rel=1e-4)


def test_one_machine_on_one_side_caps_the_claim() -> None:
    random = np.random.default_rng(5)
    found = estimate(side(random, 1, 5, name="a"), side(random, 4, 5, 0.02, name="b"))
    assert found.scope == THESE_MACHINES


def test_swapping_the_sides_inverts_the_ratio() -> None:
    random = np.random.default_rng(6)
    a, b = side(random, 1, 5, name="a"), side(random, 1, 6, mean=0.1, name="b")
    there, back = estimate(a, b), estimate(b, a)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert {decide(there, there.p_value).word, decide(back, back.p_value).word} == {"faster", "slower"}


def found(ratio: float, half: float, p_value: float) -> Estimate:
    return Estimate(ratio, ratio - half, ratio + half, p_value, 8.0, THESE_MACHINES, (5, 5), (1, 1))


@pytest.mark.parametrize(
    ("ratio", "half", "p_value", "word", "reason"),
    [
        (1.10, 0.01, 1e-6, "faster", ""),
        (0.90, 0.01, 1e-6, "slower", ""),
        (1.05, 0.04, 0.02, "faster", "the interval reaches into the band of 3.0%"),
        (1.01, 0.005, 1e-3, "tie", "the whole interval lies in the band of 3.0%"),
        (1.05, 0.08, 0.2, "tie", "a difference this large may be chance with so few runs: more runs would tell"),
        (1.02, 0.03, 0.1, "tie", "no difference beyond 3.0% was found, and one is not ruled out: more runs would tell"),
    ],
)
def test_the_word_and_its_reason(ratio: float, half: float, p_value: float, word: str, reason: str) -> None:
    verdict = decide(found(ratio, half, p_value), p_value)
    assert (verdict.word, verdict.reason) == (word, reason)


def test_holm_is_the_textbooks() -> None:
    # 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.04 x 1, each at least the one before
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_equal_runs_are_no_difference_and_have_no_spread() -> None:
    same = estimate([Run("a", 1.0)] * 3, [Run("b", 1.0)] * 3)
    assert (same.ratio, same.low, same.high, same.p_value) == (1.0, 1.0, 1.0, 1.0)
    assert decide(same, 1.0, band=0).word == "tie"


def test_too_few_steps_of_a_single_run_are_an_error() -> None:
    with pytest.raises(ValueError, match="train more steps"):
        variance_within([1.0])
    with pytest.raises(ValueError, match="at least one on both sides"):
        estimate([], [Run("b", 1.0)])


def test_blocks_give_the_variance_of_a_mean_of_independent_steps() -> None:
    random = np.random.default_rng(8)
    found = [variance_within(np.exp(random.normal(0, 0.02, 400)).tolist())[0] for _ in range(40)]
    assert np.mean(found) == pytest.approx(0.02**2 / 400, rel=0.15)
