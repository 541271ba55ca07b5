"""The settings of a result against its raw log, also of a log that is older than a setting."""

from __future__ import annotations

import copy

from evaluate.bundle.raw_logs import LoggedRun, _facts
from example import example_result
from utils.results import raw_samples


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
