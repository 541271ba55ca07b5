"""The summary of step times, against numbers worked by hand."""

import pytest

from utils.results.performance import data_wait_fraction, data_wait_warning, summarize, warmup_steps


@pytest.mark.parametrize(
    ("steps", "excluded"),
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (10, 3), (30, 3), (39, 3), (40, 4), (500, 50), (509, 50)],
)
def test_warm_up_is_a_tenth_at_least_three_and_never_all(steps, excluded):
    assert warmup_steps(steps) == excluded


def test_summary_of_hand_worked_steps():
    # Steady: 0.4, 0.5, 0.6 s. Mean 0.5; deviations -0.1, 0, 0.1, so variance 0.02 / 2 and deviation 0.1.
    # 8192 tokens / 0.5 s = 16384 tokens/s over 4 GPUs.
    summary = summarize([9.0, 2.0, 1.0, 0.4, 0.5, 0.6], tokens_per_step=8192, num_gpus=4)
    assert summary == pytest.approx(
        {
            "avg_step_time_seconds": 0.5,
            "min_step_time_seconds": 0.4,
            "max_step_time_seconds": 0.6,
            "std_step_time_seconds": 0.1,
            "tokens_per_second": 16384,
            "tokens_per_second_per_gpu": 4096,
            "steps_per_second": 2,
            "warmup_steps_excluded": 3,
        }
    )


def test_throughput_is_all_tokens_over_all_seconds_and_not_a_mean_of_rates():
    # 2 steps of 1000 tokens in 1 s and 3 s: 2000 tokens in 4 s. The mean of 1000 and 333 tokens/s would be 667.
    assert summarize([5.0, 5.0, 5.0, 1.0, 3.0], 1000, 1)["tokens_per_second"] == pytest.approx(500)


def test_no_finished_step_has_no_numbers_and_no_zeros():
    assert set(summarize([], 8192, 1).values()) == {None}
    assert summarize([], 8192, 1).keys() == summarize([1.0], 8192, 1).keys()


def test_one_steady_step_has_no_spread():
    summary = summarize([3.0, 0.5], 8192, 1)
    assert summary["std_step_time_seconds"] is None
    assert summary["avg_step_time_seconds"] == 0.5


def test_the_share_of_waiting_is_all_waits_over_all_seconds():
    # 0.25 s of 1 + 4 s. The mean of 0.25 / 1 and 0 / 4 would be 0.125.
    assert data_wait_fraction([1.0, 4.0], [0.25, 0.0]) == pytest.approx(0.05)


def test_one_step_that_does_not_know_its_wait_makes_the_share_unknown_and_not_smaller():
    assert data_wait_fraction([1.0, 4.0], [None, 0.25]) is None


def test_waits_of_a_slower_clock_are_no_more_than_the_whole_step():
    assert data_wait_fraction([1.0, 1.0], [1.01, 1.0]) == 1.0


@pytest.mark.parametrize("fraction", [None, 0.0, 0.0099, 0.01])
def test_up_to_one_percent_there_is_no_warning(fraction):
    assert data_wait_warning(fraction) is None


def test_above_one_percent_the_warning_says_how_much_and_what_to_do():
    text = data_wait_warning(0.0234)
    assert text.startswith("data: waiting for samples took 2.34 % of a step (limit 1 %)")
    assert "put DATA_DIR on a local disk" in text
