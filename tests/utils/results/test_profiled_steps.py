"""A recorded result leaves out exactly the steps of its profile, and no result does so without one."""

import pytest

from example import example_result
from utils.results.schema import SAMPLES, problems
from utils.results.step_line import Step, format_profiled, parse_step

PROFILE = "steps 4-5 of rank 0"


def without(*steps, profile=PROFILE, excluded=None, **changes):
    """The example without some of its ten steps."""
    result = example_result(training_config__profile=profile, **changes)
    kept = [place for place, step in enumerate(result["steps"]) if step not in steps]
    for key in SAMPLES:
        result[key] = [result[key][place] for place in kept]
    result["excluded_steps"] = dict.fromkeys(map(str, steps), "profiled") if excluded is None else excluded
    return result


def found(result):
    return "; ".join(problems(result))


def test_a_result_without_its_profiled_steps_is_valid():
    assert problems(without(4, 5)) == []
    assert problems(without(4, 5, profile=f"{PROFILE} by nsys")) == []


def test_steps_are_left_out_only_by_a_profile():
    assert "got 4 to 5 as profiled" in found(without(4, 5, profile="none"))
    assert "the recorder measures every step" in found(without(4, 5, excluded={"4": "slow", "5": "profiled"}))
    plain = without(4, 5)
    del plain["training_config"]["profile"]  # a result of an earlier version
    assert "got 4 to 5 as profiled" in found(plain)


@pytest.mark.parametrize("steps", [(4,), (5, 6), (3, 4, 5), (4, 5, 6), ()])
def test_other_steps_than_those_of_the_profile_are_refused(steps):
    assert "wanted the steps of training_config.profile: steps 4-5 of rank 0" in found(without(*steps))


def test_a_profiled_step_is_no_sample():
    result = without(4, 5)
    result |= {key: example_result()[key] for key in SAMPLES}
    assert "4 stands among the steps as well" in found(result)


@pytest.mark.parametrize("text", ["yes", "steps 5-4 of rank 0", 7, True, {"a": 1}])
def test_a_profile_that_cannot_be_read_is_named(text):
    assert "training_config.profile: got" in found(without(profile=text))


@pytest.mark.parametrize(("last", "excluded"), [(3, ()), (4, (4,)), (5, (4, 5)), (7, (4, 5))])
def test_a_run_that_failed_has_left_out_the_profiled_steps_so_far(last, excluded):
    gone = range(last + 1, 11)
    left_out = dict.fromkeys(map(str, excluded), "profiled")
    failed = {"status": "failed", "reason": "it stops"}
    assert problems(without(*excluded, *gone, excluded=left_out, **failed)) == []
    if len(excluded) > 1:
        result = without(*excluded[1:], *gone, excluded={"5": "profiled"}, **failed)
        assert "got 5 to 5 as profiled" in found(result)


def test_a_log_may_leave_out_more():
    result = without(3, 4, 5, 6, excluded={"3": "a", "4": "profiled", "5": "profiled", "6": "b"}, source="log")
    assert problems(result) == []
    result["training_config"]["profile"] = "steps 4-6 of rank 0"
    assert "wanted the steps of training_config.profile" in found(result)


def test_the_line_of_a_profiled_step_has_no_time_and_is_read_back():
    line = format_profiled("CPU", 4, 30, 6.02, 1.23)
    assert line == "[CPU] Step 4/30 | profiled | loss 6.0200 | 1.2 GB\n"
    assert parse_step(line) == Step(4, 30, None, None, 6.02, 1.2)
    assert parse_step(line).time == "profiled" and parse_step(line.replace("profiled", "0.5 s")) is None
