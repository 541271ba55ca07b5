"""Lines of a log: those of steps, of profiled steps, of raw samples, of several jobs."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest

from example import example_result
from utils.results import gathered, raw_samples, schema, step_line


@pytest.mark.parametrize("loss", [6.3445, math.nan, math.inf, -math.inf])
def test_the_line_of_a_step_is_read_back_also_with_a_loss_that_is_not_finite(loss):
    step = step_line.Step(number=7, total=500, seconds=1.25, average_seconds=1.5, loss=loss, memory_gb=61.7)
    assert str(step_line.parse_step(step_line.format_step("NVIDIA", *astuple(step)))) == str(step)  # nan is not nan


def test_the_line_of_a_profiled_step_has_no_time_and_is_read_back():
    line = step_line.format_profiled("CPU", 4, 30, 6.02, 1.23)
    assert line == "[CPU] Step 4/30 | profiled | loss 6.0200 | 1.2 GB\n"
    assert step_line.parse_step(line) == step_line.Step(4, 30, None, None, 6.02, 1.2)
    assert step_line.parse_step(line).time == "profiled"


@pytest.mark.parametrize(
    "line",
    [
        "Step 1/30 | 0.5 s",
        "=== train_cpu_mega_llama_run1: 0.149 s a step",
        "[CPU] Step 4/30 | 0.5 s | loss 6.0200 | 1.2 GB",
        "[rank0]: [CPU] Step 1/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB",
        "[CPU] Step 1/6 | 0.174 s | avg",
        "[CPU] Step 1/6 | 0.174 s | avg 0.174 s | loss 8.38.3360 | 0.5 GB",  # two ranks wrote into one line
        f"[CPU] Step {'1' * 5000}/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB",
        "",
    ],
)
def test_other_lines_are_no_steps(line):
    assert step_line.parse_step(line) is None


def test_raw_lines_hold_every_sample_with_all_digits_and_what_they_are_samples_of():
    given = example_result(step_times=[math.pi / step for step in range(1, 11)], data_wait_seconds=[None] * 10)
    given["gpu_info"]["device_name"] = "two\nlines"
    lines = list(raw_samples.lines(given))
    assert all(line.endswith("\n") and line.count("\n") == 1 and raw_samples.is_raw(line) for line in lines)
    said = [raw_samples.parse(line) for line in lines]
    identity, *sections, samples = said[0], *said[1:6], said[6:]
    assert identity["identity_sha256"] == given["identity_sha256"] and identity["attempt"] == 1
    assert {name for section in sections for name in section} == set(raw_samples.SECTIONS)
    assert (
        sections[0]["gpu_info"]["device_name"] == "two\nlines"
        and sections[1]["training_config"] == given["training_config"]
    )
    assert samples == [{key: given[key][place] for key in schema.SAMPLES} for place in range(10)]


@pytest.mark.parametrize("line", ["raw: {", "raw: []", "raw: 1", "raw: " + "[" * 100_000])
def test_a_damaged_raw_line_is_none(line):
    assert raw_samples.parse(line) is None


def test_a_sample_that_is_no_number_is_not_written():
    with pytest.raises(ValueError, match="JSON"):
        list(raw_samples.lines(example_result(loss_values=[math.nan] * 10)))


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
