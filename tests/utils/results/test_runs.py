"""The summary of step times, against numbers worked by hand, and the number of runs that follows from their spread."""

from __future__ import annotations

import copy
import functools
import json
import math
import operator
from dataclasses import astuple
from pathlib import Path

import pytest
from scipy import stats

from evaluate.bundle.raw_logs import parsed
from example import example_result
from utils.results import gathered, performance, probe_file, raw_samples, schema

AUTO, FIVE = (performance.RunsRule.of(runs) for runs in (None, 5))


def spread(count, relative):
    """Rates whose logarithms are `count` values of mean 0, half of them above and half below, with this deviation."""
    signs = [(-1) ** number for number in range(count)]
    center = sum(signs) / count
    size = math.sqrt(sum((sign - center) ** 2 for sign in signs) / (count - 1))
    return [1000 * math.exp(relative * (sign - center) / size) for sign in signs]


def test_table_of_students_t_is_that_of_scipy():
    assert [round(stats.t.ppf(0.975, degrees), 3) for degrees in range(1, 10)] == list(performance.T_975)


@pytest.mark.parametrize("given", [[16384.0, 16500.0], [100.0, 103.0, 99.0, 101.5], [5.0, 5.01, 4.99, 5.02, 4.98] * 2])
def test_half_width_is_that_of_scipys_interval_of_the_logarithms_in_any_unit(given):
    logs = [math.log(rate) for rate in given]
    _, high = stats.t.interval(0.95, len(logs) - 1, loc=0.0, scale=stats.sem(logs))
    for factor in (1, 1 / 7):
        assert performance.half_width([rate * factor for rate in given]) == pytest.approx(math.exp(high) - 1, rel=1e-3)


def test_half_width_is_unknown_for_one_run_and_that_of_three_is_worked_by_hand():
    assert performance.half_width([900.0]) is None and performance.half_width([]) is None
    assert performance.half_width([900.0] * 3) == 0
    # logarithms -0.01, 0, 0.01: s = 0.01; 4.303 * 0.01 / sqrt(3) = 0.024843; e^0.024843 - 1 = 0.025155
    assert performance.half_width([math.exp(-0.01), 1.0, math.exp(0.01)]) == pytest.approx(0.025155, abs=2e-6)


# three runs: the limit is s = ln(1.01) sqrt(3) / 4.303 = 0.4005 %; ten runs: ln(1.01) sqrt(10) / 2.262 = 1.391 %
@pytest.mark.parametrize(
    ("rule", "given", "failed", "goes_on"),
    [
        (AUTO, [], 0, True),
        (AUTO, spread(2, 1e-9), 0, True),
        (AUTO, spread(3, 0.00400), 0, False),
        (AUTO, spread(3, 0.00401), 0, True),
        (AUTO, spread(9, 0.02), 0, True),
        (AUTO, spread(10, 0.0139), 0, False),
        (AUTO, spread(10, 0.2), 0, False),
        # one failed run is replaced, two end the job
        (AUTO, [], 1, True),
        (AUTO, spread(2, 0.0001), 1, True),
        (AUTO, [], 2, False),
        (AUTO, [1.0], 2, False),
        (AUTO, spread(3, 0.0001), 1, False),
        (AUTO, spread(9, 0.0001), 1, False),
        # ten tries are the most, also when one of them failed
        (AUTO, spread(8, 0.2), 1, True),
        (AUTO, spread(9, 0.2), 1, False),
        # a number of runs depends on no result: a job that fails is tried as often as was asked
        (FIVE, [1.0], 0, True),
        (FIVE, [1.0] * 4, 0, True),
        (FIVE, [1.0] * 5, 0, False),
        (FIVE, [], 4, True),
        (FIVE, [], 5, False),
    ],
)
def test_runs_go_on_until_the_mean_is_known_or_the_job_fails(rule, given, failed, goes_on):
    decision = rule.decide(given, failed)
    assert decision.goes_on is goes_on
    assert rule is FIVE or f"{len(given)} run" in decision.why
    assert rule is FIVE or failed == 0 or f"{failed} failed" in decision.why
    assert (AUTO.is_fixed, FIVE.is_fixed) == (False, True)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (spread(3, 0.002), "3 runs, mean known within +-0.5 % (95 %)"),
        (spread(3, 0.01), "3 runs, mean known within +-2.5 % (95 %), +-1 % wanted"),
        # 2.262 * 0.02 / sqrt(10) = 0.014306; e^0.014306 - 1 = 1.44 %
        (spread(10, 0.02), "10 runs, mean known within +-1.4 % (95 %); 10 runs are the most"),
    ],
)
def test_reason_names_the_width_that_was_reached_and_the_limit_that_ended_the_runs(given, why):
    assert AUTO.decide(given).why == why


def test_rates_are_those_of_ok_results():
    given = [("ok", 5.0), ("failed", 7.0), ("ok", None), ("ok", 0.0)]
    results = ({"status": word, "performance_metrics": {"tokens_per_second_per_gpu": rate}} for word, rate in given)
    assert performance.rates(results) == [5.0]


# The summary of one run


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
            8192,
            4,
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


@pytest.mark.parametrize("fraction", [None, 0.0, 0.0099, 0.01])
def test_above_one_percent_the_warning_says_how_much_and_what_to_do(fraction):
    assert performance.data_wait_warning(fraction) is None
    warned = "data: waiting for samples took 2.34 % of a step (limit 1 %)"
    assert performance.data_wait_warning(0.0234).startswith(warned)


# Lines of a log: those of steps, of profiled steps, of raw samples, of several jobs.


@pytest.mark.parametrize("loss", [6.3445, math.nan, math.inf, -math.inf])
def test_the_line_of_a_step_is_read_back_also_with_a_loss_that_is_not_finite(loss):
    step = raw_samples.Step(number=7, total=500, seconds=1.25, average_seconds=1.5, loss=loss, memory_gb=61.7)
    assert str(raw_samples.parse_step(raw_samples.format_step("NVIDIA", *astuple(step)))) == str(step)  # nan is not nan


def test_the_line_of_a_profiled_step_has_no_time_and_is_read_back():
    line = raw_samples.format_profiled("CPU", 4, 30, 6.02, 1.23)
    assert line == "[CPU] Step 4/30 | profiled | loss 6.0200 | 1.2 GB\n"
    assert raw_samples.parse_step(line) == raw_samples.Step(4, 30, None, None, 6.02, 1.2)


@pytest.mark.parametrize(
    "line",
    [
        "Step 1/30 | 0.5 s",
        "=== train_cpu_mega_llama_run1: 0.149 s a step",
        "[CPU] Step 4/30 | 0.5 s | loss 6.0200 | 1.2 GB",
        "[rank0]: [CPU] Step 1/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB",
        "[CPU] Step 1/6 | 0.174 s | avg",
        "[CPU] Step 1/6 | 0.174 s | avg 0.174 s | loss 8.38.3360 | 0.5 GB",  # two ranks wrote into one line
        "raw: {",
        "raw: []",
        "raw: 1",
        "raw: " + "[" * 100_000,
        f"[CPU] Step {'1' * 5000}/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB",
        "",
    ],
)
def test_other_lines_are_no_steps_and_damaged_ones_no_samples(line):
    assert (parsed if line.startswith("raw: ") else raw_samples.parse_step)(line) is None


def test_raw_lines_hold_every_sample_with_all_digits_and_what_they_are_samples_of():
    given = example_result(step_times=[math.pi / step for step in range(1, 11)], data_wait_seconds=[None] * 10)
    given["gpu_info"]["device_name"] = "two\nlines"
    lines = list(raw_samples.lines(given))
    assert all(line.endswith("\n") and line.count("\n") == 1 and line.startswith(raw_samples.PREFIX) for line in lines)
    said = [parsed(line) for line in lines]
    sections = {name: value for section in said[1:6] for name, value in section.items()}
    assert said[0]["identity_sha256"] == given["identity_sha256"] and said[0]["attempt"] == 1
    assert sections.keys() == set(raw_samples.SECTIONS) and sections["training_config"] == given["training_config"]
    assert sections["gpu_info"]["device_name"] == "two\nlines"
    assert said[6:] == [{key: given[key][place] for key in schema.SAMPLES} for place in range(10)]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            [(f"job {n}", f"{90 + n} % of the time, {n}.5 GB; stop other work") for n in range(1, 4)],
            ["91 to 93 % of the time, 1.5 to 3.5 GB; stop other work (3 jobs)"],
        ),
        # numbers of things are listed and not made a range
        ([("a", "process 77 holds it"), ("b", "process 5 holds it")], ["process 5, 77 holds it (2 jobs)"]),
        ([("a", f"process {n} holds it") for n in range(1, 6)], ["process 1, 2, 3, ... holds it (1 job)"]),
        # other words or units stay apart in their order
        (
            [("a", "swap: 3 GB"), ("b", "cap: 3 W"), ("b", "swap: 3 MB"), ("c", "cap: 3 W")],
            ["swap: 3 GB (1 job)", "cap: 3 W (2 jobs)", "swap: 3 MB (1 job)"],
        ),
        ([("a", "x"), ("a", "x")], ["x (1 job)"]),
        ([], []),
    ],
)
def test_lines_of_jobs_that_differ_only_in_numbers_are_one_with_the_number_of_jobs(said, wanted):
    assert gathered.gathered(said) == wanted


# The files of a probe and of a profile are read with all their parts; nonsense is one line that names it.

RATES_ONLY = {
    "probe_version": 1,
    "platform": "cpu",
    "host": "example",
    "device_name": "Example",
    "started_utc": "2026-11-22T00:00:00+00:00",
    "pytorch_version": "2.13.0",
    "total_memory_gb": 80.0,
    "rates": {"fp32": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0.1}},
    "reasons": {"fp8": "none"},
}
WHOLE = RATES_ONLY | {
    "probe_version": 2,
    "operators": "of an earlier suite",
    "jobs": ["ignored"],
    "collectives": [
        {
            "name": "all_reduce",
            "bytes": 1048576,
            "ranks": 2,
            "nodes": 1,
            "seconds": 1e-3,
            "spread_percent": 2.0,
            "bus_gb_per_second": 1.05,
        }
    ],
    "bandwidth": {"copy": {"gb_per_second": 20.0, "spread_percent": 0.5, "gb": 0.27}},
    "attention": {"tflops": 1.5, "spread_percent": 0.1, "shape": [1, 8, 512, 64]},
    "findings": ["F.linear is slow"],
    "machine": "of an earlier suite",
    "loader_samples_per_second": "ignored",
}


def test_every_part_of_version_2_is_read(tmp_path):
    path = tmp_path / "probe_cpu_example.json"
    path.write_text(json.dumps(WHOLE))
    found = probe_file.read(path)
    (sent,) = found.collectives
    assert (sent.name, sent.ranks, sent.bus_gb_per_second) == ("all_reduce", 2, 1.05)
    assert found.bandwidth == {"copy": probe_file.Bandwidth(20.0, 0.5, 0.27)}
    assert (found.attention_tflops, found.findings) == (1.5, ("F.linear is slow",))


WITHOUT_ATTENTION = {key: value for key, value in WHOLE.items() if key != "attention"}


@pytest.mark.parametrize(
    "content",
    [
        RATES_ONLY,
        WHOLE | {"collectives": [], "bandwidth": {}, "attention": None, "findings": []},
        WITHOUT_ATTENTION | {"collectives": [], "bandwidth": {}},
    ],
)
def test_version_1_has_rates_only_and_what_was_not_measured_may_be_empty(content):
    found = probe_file.parse(content, Path("probe_cpu_example.json"))
    assert found.rates["fp32"].best_tflops == 2.0
    assert (found.collectives, found.bandwidth, found.attention_tflops) == ((), {}, None)


def test_a_hosts_name_cannot_leave_the_folder():
    assert probe_file.name("nvd", "../../x y") == "probe_nvd_..-..-x-y.json"


MISSING = "@missing@"
WRONG = {
    **{f"no {part}": ((), {part: MISSING}, part) for part in ("collectives", "bandwidth", "findings")},
    "another version": ((), {"probe_version": 3}, "version 2 or 1"),
    "null collectives": ((), {"collectives": None}, "collectives: got None, wanted a list"),
    "a collective that is a text": ((), {"collectives": ["all_reduce"]}, "collectives[0]"),
    "no name": (("collectives", 0), {"name": ""}, "name: got ''"),
    "no ranks": (("collectives", 0), {"ranks": 0}, "ranks: got 0, wanted a whole number from 1"),
    "bytes below nothing": (("collectives", 0), {"bytes": -1}, "bytes"),
    "a time that is a truth": (("collectives", 0), {"seconds": True}, "seconds: got True"),
    "a collective of no time": (("collectives", 0), {"seconds": 0}, "collectives[0]: seconds"),
    "bandwidths in a list": ((), {"bandwidth": []}, "bandwidth: got [], wanted an object"),
    "a bandwidth of nothing": (("bandwidth", "copy"), {"gb_per_second": 0}, "gb_per_second"),
    "an attention that is a text": ((), {"attention": "fast"}, "attention: got 'fast'"),
    "findings that are numbers": ((), {"findings": [1]}, "findings"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_nonsense_is_one_line_that_names_file_and_place(fault):
    place, changes, named = WRONG[fault]
    content = copy.deepcopy(WHOLE)
    inner = functools.reduce(operator.getitem, place, content)
    inner |= changes
    for key in [key for key, value in inner.items() if value == MISSING]:
        del inner[key]
    with pytest.raises(probe_file.ProbeError) as raised:
        probe_file.parse(content, Path("probe_cpu_example.json"))
    message = str(raised.value)
    assert message.startswith("probe_cpu_example.json: ") and named in message and "\n" not in message
