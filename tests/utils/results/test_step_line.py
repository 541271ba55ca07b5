"""A step's line says the same to whoever reads it; other lines are no steps."""

import math
from dataclasses import astuple

import pytest

from utils.results.step_line import Step, format_step, parse_step


def test_what_is_written_is_read_back():
    step = Step(number=7, total=500, seconds=1.25, average_seconds=1.5, loss=6.3445, memory_gb=61.7)
    assert parse_step(format_step("NVIDIA", *astuple(step))) == step


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_step_with_a_loss_that_is_not_finite_is_a_step(loss):
    step = parse_step(format_step("CPU", 1, 30, 0.5, 0.5, loss, 0.4))
    assert step is not None and (step.loss == loss or math.isnan(loss))


@pytest.mark.parametrize(
    "line",
    [
        "Step 1/30 | 0.5 s",
        "=== train_cpu_mega_llama_run1: 0.149 s a step",
        "[rank0]: [CPU] Step 1/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB",
        "[CPU] Step 1/6 | 0.174 s | avg",
        "[CPU] Step 1/6 | 0.174 s | avg 0.174 s | loss 8.38.3360 | 0.5 GB",  # two ranks wrote into one line
        f"[CPU] Step {'1' * 5000}/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB",
        "",
    ],
)
def test_other_lines_are_no_steps(line):
    assert parse_step(line) is None
