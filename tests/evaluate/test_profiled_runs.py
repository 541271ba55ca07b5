"""A profiled run is compared with none that was not profiled, and is averaged with none."""

from agreeing import make_consistent

from evaluate.checks.entries import check_result
from tests.evaluate.test_sides import compared, runs  # noqa: F401, a fixture
from utils.results.schema import SAMPLES, problems

PROFILE, STEPS = "steps 41-43 of rank 0", (41, 42, 43)


def profiled(results, profile=PROFILE, label="profiled"):
    """The same runs with some steps under a profiler."""
    for result in results:
        kept = [place for place, step in enumerate(result["steps"]) if step not in STEPS]
        for key in SAMPLES:
            result[key] = [result[key][place] for place in kept]
        result["excluded_steps"] = dict.fromkeys(map(str, STEPS), "profiled")
        result["training_config"]["profile"], result["label"] = profile, label
        make_consistent(result)
        assert problems(result) == [] and check_result(result).rejections == ()
    return results


def test_a_profiled_run_against_one_that_was_not_is_not_comparable(compared):  # noqa: F811
    found = compared(runs("nvd", 1.0) + profiled(runs("amd", 0.9)))
    assert found.one["verdict"] == "not_comparable"
    assert "profile differs: none against steps 41-43 of rank 0" in found.printed


def test_two_sides_that_were_profiled_alike_are_compared(compared):  # noqa: F811
    found = compared(profiled(runs("nvd", 1.0)) + profiled(runs("amd", 0.9)))
    assert found.one["verdict"] == "faster"


def test_other_profiled_steps_are_other_runs(compared):  # noqa: F811
    other = "steps 41-43 of all ranks"
    found = compared(profiled(runs("nvd", 1.0)) + profiled(runs("amd", 0.9), profile=other))
    assert found.one["verdict"] == "not_comparable"


def test_profiled_runs_beside_others_are_left_out_and_named(compared):  # noqa: F811
    plain = runs("nvd", 1.0) + runs("amd", 0.9)
    found = compared(plain + profiled(runs("amd", 1.3, first=4), label=""))
    assert (found.one["verdict"], found.one["runs"]) == ("faster", [3, 3])
    assert "the other side has no run of" in found.printed and "profile of steps 41-43 of rank 0" in found.printed
