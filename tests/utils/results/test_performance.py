"""The summary of step times, against numbers worked by hand."""

import pytest

from utils.results import performance


@pytest.mark.parametrize(
    ("steps", "excluded"),
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (10, 3), (30, 3), (39, 3), (40, 4), (500, 50), (509, 50)],
)
def test_warm_up_is_a_tenth_at_least_three_and_never_all(steps, excluded):
    assert performance.warmup_steps(steps) == excluded


UNKNOWN = dict.fromkeys(performance.summarize([], 8192, 1))


@pytest.mark.parametrize(
    ("times", "tokens", "gpus", "wanted"),
    [
        # Steady: 0.4, 0.5, 0.6 s. Mean 0.5; deviations -0.1, 0, 0.1, so variance 0.02 / 2 and deviation 0.1.
        # 8192 tokens / 0.5 s = 16384 tokens/s over 4 GPUs.
        (
            [9.0, 2.0, 1.0, 0.4, 0.5, 0.6],
            *(8192, 4),
            {
                "avg_step_time_seconds": 0.5,
                "min_step_time_seconds": 0.4,
                "max_step_time_seconds": 0.6,
                "std_step_time_seconds": 0.1,
                "tokens_per_second": 16384,
                "tokens_per_second_per_gpu": 4096,
                "steps_per_second": 2,
                "warmup_steps_excluded": 3,
            },
        ),
        # 2 steps of 1000 tokens in 1 s and 3 s: 2000 tokens in 4 s. The mean of 1000 and 333 tokens/s would be 667.
        ([5.0, 5.0, 5.0, 1.0, 3.0], 1000, 1, {"tokens_per_second": 500}),
        ([3.0, 0.5], 8192, 1, {"std_step_time_seconds": None, "avg_step_time_seconds": 0.5}),
        ([], 8192, 1, UNKNOWN),
    ],
)
def test_summary_of_hand_worked_steps(times, tokens, gpus, wanted):
    summary = performance.summarize(times, tokens_per_step=tokens, num_gpus=gpus)
    assert {key: summary[key] for key in wanted} == pytest.approx(wanted)
    assert summary.keys() == UNKNOWN.keys()


@pytest.mark.parametrize(
    ("times", "waits", "share"),
    [
        ([1.0, 4.0], [0.25, 0.0], 0.05),  # 0.25 s of 1 + 4 s. The mean of 0.25 / 1 and 0 / 4 would be 0.125
        ([1.0, 4.0], [None, 0.25], None),  # unknown, and not smaller
        ([1.0, 1.0], [1.01, 1.0], 1.0),  # of a slower clock
    ],
)
def test_the_share_of_waiting_is_all_waits_over_all_seconds(times, waits, share):
    assert performance.data_wait_fraction(times, waits) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("fraction", [None, 0.0, 0.0099, 0.01, 0.0234])
def test_above_one_percent_the_warning_says_how_much_and_what_to_do(fraction):
    text = performance.data_wait_warning(fraction)
    assert text is None or "put DATA_DIR on a local disk" in text
    assert (text or "").startswith("data: waiting for samples took 2.34 % of a step (limit 1 %)") == (
        fraction == 0.0234
    )
    assert (text is None) == (fraction != 0.0234)
