"""A copied run counts once, and runs that shared their GPUs do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sides import Result, gpus, make_consistent, one_verdict, run, runs, validated

EQUAL = run("nvd")["loss_values"]


def at(result: Result, start: str, end: str, **more: Any) -> Result:
    clock = {"started_utc": f"2026-11-21T{start}+00:00", "finished_utc": f"2026-11-21T{end}+00:00"}
    result["provenance"] |= clock | more
    return result


def twice(first: dict[str, Any], second: dict[str, Any], platform: str = "nvd") -> list[Result]:
    """Return a run of two minutes and one that begins a minute later, with these facts of their provenance."""
    one, other = run("nvd", 1, **gpus(4)), run(platform, 2, **gpus(4))
    return [at(one, "01:00:00", "01:02:00", **first), at(other, "01:01:00", "01:03:00", **second)]


def visible(indices: str) -> dict[str, Any]:
    return {"environment": {"CUDA_VISIBLE_DEVICES": indices}}


def copied(platform: str = "nvd", number: int = 2) -> list[Result]:
    """Return a run, and one with its step times."""
    other = run(platform, number)
    other["step_times"] = run("nvd")["step_times"]
    make_consistent(other)
    return [run("nvd"), other]


COPY, OVERLAP = "acopiedrunisnosecondrun", "intimeon"
SEVERAL: dict[str, tuple[list[Result], list[str]]] = {
    "a copy": (copied(), ["", COPY]),
    "a copy on another platform": (copied("amd"), ["", COPY]),
    "a copy with the clock of the first": ([run("nvd"), run("nvd") | {"run": 2, "attempt": 2}], ["", COPY]),
    "honest runs": (runs("nvd", 1.0), ["", "", ""]),
    "equal losses of one seed": ([run("nvd", number) | {"loss_values": EQUAL} for number in (1, 2, 3)], ["", "", ""]),
    "the same file twice": ([run("nvd"), run("nvd")], ["", ""]),
    "at one time": (twice({}, {}), [OVERLAP, OVERLAP]),
    "a failed attempt beside it": (
        [twice({}, {})[0] | {"status": "failed", "reason": "ended by SIGKILL"}, twice({}, {})[1]],
        [OVERLAP, OVERLAP],
    ),
    "in one second": (
        [at(run("nvd", 1), "01:00:00", "01:02:00"), at(run("nvd", 2), "01:02:00", "01:04:00")],
        ["", ""],
    ),
    "one that lasts beyond the others": (
        [
            at(run("nvd", number), f"01:{start}:00", f"01:{end}:00")
            for number, (start, end) in enumerate([("00", "30"), ("05", "07"), ("20", "22"), ("40", "42")], 1)
        ],
        [OVERLAP, OVERLAP, OVERLAP, ""],
    ),
    "on another machine": (twice({}, {"host": "nvd-2"}), ["", ""]),
    "machines of one name": (twice({"host": "node0"}, {"host": "node0"}, "amd"), ["", ""]),
    "a node in common": (twice({"hosts": ["n1", "n2"]}, {"host": "n3", "hosts": ["n3", "n2"]}), [OVERLAP, OVERLAP]),
    "other GPUs": (twice(visible("0,1,2,3"), visible("4,5,6,7")), ["", ""]),
    "a GPU in common": (twice(visible("0,1,2,3"), visible("3,4,5,6")), [OVERLAP, OVERLAP]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_copies_and_runs_that_shared_their_gpus_are_rejected_and_honest_runs_are_not(tmp_path: Path, name: str) -> None:
    results, wanted = SEVERAL[name]
    for (verdict, reason), words in zip(validated(tmp_path, results), wanted, strict=True):
        assert (verdict == "REJECTED", words in reason) == (bool(words), True), reason


@pytest.mark.parametrize(("joules", "is_said"), [(57123.4567, True), (57000.0, False)])
def test_equal_energy_to_the_last_digit_is_marked(tmp_path: Path, joules: float, is_said: bool) -> None:
    results = [run("nvd", number, energy_metrics__joules=joules) for number in (1, 2)]
    said = ["".join(["J", "of", "train"]) in reason for _, reason in validated(tmp_path, results)]
    assert said == [False, is_said]


def test_the_copies_of_a_run_leave_too_few_runs_for_a_word(tmp_path: Path) -> None:
    copies = [*copied(), copied(number=3)[1]]
    verdict = one_verdict(tmp_path, [*copies, *runs("amd", 0.8)])
    assert (verdict["verdict"], verdict["runs"]) == ("undecided", [1, 3])
