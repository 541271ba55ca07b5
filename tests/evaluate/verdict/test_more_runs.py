"""The clause about more runs names the smallest number that would decide, on which side, and its time."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evaluate.verdict.inference import Run, decide, estimate
from evaluate.verdict.more_runs import wall_seconds, would_decide
from example import example_result

NAMES = ("nvd", "amd")
BAND, SECONDS = 0.03, (600.0, 300.0)


def spread(machine: str, mean: float, deviation: float, count: int) -> list[Run]:
    """Return runs with this mean and standard deviation."""
    places = [place - (count - 1) / 2 for place in range(count)]
    unit = math.sqrt(sum(place**2 for place in places) / (count - 1))
    return [Run(machine, mean + deviation * place / unit) for place in places]


def clause(a: list[Run], b: list[Run], level: float = 0.03, **seconds: Any) -> str:
    return would_decide(estimate(a, b), NAMES, BAND, level, **({"seconds": SECONDS} | seconds))


def word(a: list[Run], b: list[Run]) -> str:
    found = estimate(a, b)
    return decide(found, found.p_value)[0]


HOPELESS = "no number of runs up to {} a side, because runs of one side differ by {}"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([Run("n", 0.0)], [Run("a", 0.1)], "at least 2 more runs on each side, about 30 minutes"),
        (
            spread("n", 0.0, 0.002, 5),
            [Run("a", 0.2)],
            "2 more runs on amd, about 10 minutes, if the runs on amd vary as those on nvd do",
        ),
        (spread("n", 0.0, 0.01, 3), [Run("a", 0.1)] * 3, "3 independent runs on amd"),
        (spread("n", 0.0, 0.5, 3), spread("a", 0.05, 0.5, 3), HOPELESS.format(20, "64.9%")),
        # at the edge of the band
        (spread("n", 0.0, 0.01, 5), spread("a", math.log(1.0299), 0.01, 5), HOPELESS.format(20, "1.0%")),
        (
            spread("n", 0.0, 0.01, 5),
            spread("a", math.log(1.0299), 0.01, 5),
            "the ratio is 3.0% from 1 with a band of 3.0%",
        ),
        # a side with many runs is forecast beyond them
        (spread("n", 0.0, 0.9, 30), spread("a", 0.04, 0.9, 30), "no number of runs up to 40 a side, because"),
        (spread("n", 0.0, 0.07, 30), spread("a", 0.04, 0.07, 30), "more run"),
    ],
)
def test_the_clause_names_number_side_and_time_or_why_no_number_helps(a: list[Run], b: list[Run], said: str) -> None:
    assert said in clause(a, b)


@pytest.mark.parametrize(("a", "b"), [((0.01, 3), (0.02, 3)), ((0.03, 3), (0.01, 5)), ((0.02, 2), (0.02, 2))])
def test_the_number_is_the_smallest_that_decides_by_trying_each(a: tuple[float, int], b: tuple[float, int]) -> None:
    nvd, amd = (
        [spread(name, mean, deviation, count + more) for more in range(9)]
        for name, mean, (deviation, count) in (("n", 0.0, a), ("a", 0.045, b))
    )
    assert word(nvd[0], amd[0]) == "undecided"
    fewest = min(600 * i + 300 * j for i in range(9) for j in range(9) if word(nvd[i], amd[j]) == "faster")
    text = clause(nvd[0], amd[0])
    assert f"about {fewest / 60:.0f} minutes" in text, (text, fewest)


def test_a_ratio_inside_the_band_is_forecast_to_fit_into_it() -> None:
    nvd, amd = ([spread(name, mean, 0.0115, n) for n in (3, 4)] for name, mean in (("n", 0.0), ("a", 0.005)))
    assert [word(one, other) for one in nvd for other in amd] == ["undecided"] * 3 + ["tie"]
    assert clause(nvd[0], amd[0], seconds=(None, None)) == "1 more run on each side"


def test_several_machines_a_side_need_more_machines_and_no_time_is_named() -> None:
    machines = [
        [Run(f"{name}{place}", mean + step) for place, step in enumerate((-0.02, 0.02)) for _ in range(3)]
        for name, mean in (("n", 0.0), ("a", 0.1))
    ]
    text = clause(machines[0], machines[1])
    assert "more machine" in text and "minutes" not in text


@pytest.mark.parametrize(
    ("started", "finished", "seconds"),
    [
        ("2026-11-20T10:00:00+00:00", "2026-11-20T10:12:30+00:00", 750.0),
        ("2026-11-20T10:00:00+00:00", "2026-11-20T09:00:00+00:00", None),
        (None, "2026-11-20T09:00:00+00:00", None),
        ("yesterday", "2026-11-20T09:00:00+00:00", None),
        ("2026-11-20T10:00:00+00:00", "9999-11-20T10:12:30+00:00", None),
    ],
)
def test_the_time_of_a_run_is_that_of_its_provenance(started: Any, finished: Any, seconds: float | None) -> None:
    result = example_result()
    result["provenance"] |= {"started_utc": started, "finished_utc": finished}
    assert wall_seconds([result]) == seconds
