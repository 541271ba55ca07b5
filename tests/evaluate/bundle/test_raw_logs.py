"""The settings of a result against its raw log, also of a log that is older than a setting."""

from __future__ import annotations

import copy

import pytest

from evaluate.bundle.raw_logs import LoggedRun, _facts, _profiled, _progress
from example import example_result
from utils.results import raw_samples
from utils.results.step_line import format_profiled, format_step


def logged(result):
    """The run as the raw log of this result has it."""
    keys = (*raw_samples.IDENTITY, *raw_samples.SECTIONS)
    return LoggedRun(facts={key: copy.deepcopy(result.get(key)) for key in keys})


def test_a_log_that_is_older_than_a_setting_lacks_nothing():
    result = example_result()
    run = logged(result)
    for section in ("training_config", "resolved_config"):
        del run.facts[section]["fp8_recipe"], run.facts[section]["optimizer_state"]
    assert list(_facts(run, result, "log")) == []


def test_a_setting_that_an_older_log_cannot_have_is_still_compared():
    result = example_result()
    run = logged(result)
    del run.facts["training_config"]["optimizer_state"]
    result["training_config"]["optimizer_state"] = "bf16"
    (line,) = _facts(run, result, "log")
    assert line.startswith("training_config.optimizer_state")


def test_a_setting_that_every_log_has_is_missed():
    result = example_result()
    run = logged(result)
    del run.facts["training_config"]["lr"]
    assert list(_facts(run, result, "log")) == ["training_config: the log lacks lr (log)"]


def progress_of(result, *profiled):
    """The progress lines of ten steps, some of them profiled."""
    run = LoggedRun()
    for step in range(1, 11):
        seconds = example_result()["step_times"][step - 1]
        plain = format_step("CPU", step, 10, seconds, seconds, 7.0, 1.2)
        run.read(format_profiled("CPU", step, 10, 7.0, 1.2) if step in profiled else plain, "log")
    return run.progress


@pytest.mark.parametrize(
    ("excluded", "printed", "said"),
    [
        ((4, 5), (4, 5), []),
        ((), (), []),
        ((4, 5), (4,), ["step 5 is profiled in the result and not in the log"]),
        ((), (4,), ["step 4 is profiled in the log and not in the result"]),
    ],
)
def test_the_profiled_steps_of_a_result_are_those_of_its_log(excluded, printed, said):
    result = example_result(excluded_steps=dict.fromkeys(map(str, excluded), "profiled"))
    found = list(_profiled(progress_of(result, *printed), result, "log"))
    assert [line.removeprefix("excluded_steps: ").removesuffix(" (log)") for line in found] == said


def test_a_time_of_a_step_that_the_log_has_as_profiled_is_a_fault():
    result = example_result()
    assert list(_progress(progress_of(result), result, False, "log", exact=True)) == []
    (line,) = _progress(progress_of(result, 4), result, False, "log", exact=True)
    assert "step 4: the progress line has profiled" in line
