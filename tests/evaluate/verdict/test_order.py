"""Runs of one side after those of the other on one machine, and runs that resemble the one before, are named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from sides import FIRST_START, Result, make_consistent, one_verdict, run, runs, start_at

AFTER, DRIFT = "were before those of", "which drifts"


def two(starts: dict[str, list[int]], drift_per_hour: float, noise: float = 1e-4) -> list[Result]:
    """Return runs of mega and hf on one machine that start at these hours, which all become slower over time."""
    random, found = np.random.default_rng(3), []
    for framework, hours in starts.items():
        for number, hour in enumerate(hours, 1):
            seconds = (1 + drift_per_hour * hour) * (1 + noise * float(random.normal()))
            one = run("nvd", number, 1.0, framework=framework)
            one["step_times"] = [seconds * (1 + 1e-4 * (step % 7 - 3)) for step in one["steps"]]
            one["loss_values"] = [loss * (1 + 1e-6 * len(found)) for loss in one["loss_values"]]
            make_consistent(one)
            start_at(one, FIRST_START + timedelta(hours=hour))
            found.append(one)
    return found


@pytest.mark.parametrize(
    ("starts", "drift", "said"),
    [
        ({"mega": [0, 1, 2, 3], "hf": [4, 5, 6, 7]}, 0.002, [AFTER, DRIFT]),
        ({"mega": [0, 1, 2, 3], "hf": [4, 5, 6, 7]}, 0.0, [AFTER]),
        ({"mega": [0, 2, 4, 6], "hf": [1, 3, 5, 7]}, 0.002, []),
        ({"mega": [0, 2, 4, 6], "hf": [1, 3, 5, 7]}, 0.0, []),
    ],
)
def test_one_side_after_the_other_is_named_and_so_is_a_drift(
    tmp_path: Path, starts: dict[str, list[int]], drift: float, said: list[str]
) -> None:
    found = one_verdict(tmp_path, two(starts, drift, 1e-4 if drift else 1e-3))
    text = "; ".join(found["remarks"])
    assert [words for words in (AFTER, DRIFT) if words in text] == said, text
    if DRIFT in said:
        assert "-0.8% between them" in text, "0.2 % an hour, 4 hours apart"


def test_a_run_that_was_measured_again_is_named(tmp_path: Path) -> None:
    results = two({"mega": [0, 9, 4, 6], "hf": [1, 3, 5, 7]}, 0.0)
    results[4]["attempt"] = 3
    text = "; ".join(one_verdict(tmp_path, results)["remarks"])
    assert "run 2 was measured after a run of a higher number" in text and "run 1 is attempt 3" in text
    assert text.count("measured after") == text.count("is attempt") == 1


def test_runs_on_two_machines_have_no_order(tmp_path: Path) -> None:
    results = runs("nvd", 1.0) + runs("amd", 0.8)
    for hour, result in enumerate(results):
        start_at(result, FIRST_START + timedelta(hours=hour))
    assert one_verdict(tmp_path, results)["remarks"] == []


@pytest.mark.parametrize(("levels", "is_said"), [([0, 0, 0, 1, 1, 1, 1, 0, 0, 0], True), ([0, 1] * 5, False)])
def test_runs_like_the_ones_before_them_are_named(tmp_path: Path, levels: list[int], is_said: bool) -> None:
    results = two({"mega": list(range(0, 20, 2)), "hf": list(range(1, 21, 2))}, 0.0)
    for level, result in zip(levels, results[:10], strict=True):
        result["step_times"] = [seconds * (1 + 0.01 * level) for seconds in result["step_times"]]
        started = FIRST_START + timedelta(hours=2 * (result["run"] - 1))
        make_consistent(result)
        start_at(result, started)
    text = "; ".join(one_verdict(tmp_path, results)["remarks"])
    assert ("runs are like the ones before them" in text) == is_said, text
