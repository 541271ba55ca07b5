"""Devices of one vendor are sides, every two of several sides have a verdict, and a ranking opens the report."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from reports import report
from sides import BOARDS, H100, H200, MI300X, MI355X, Result, compared, failed_early, on, verdicts

from evaluate import compare
from evaluate.verdict.ratios import times


@pytest.mark.parametrize(
    ("seconds", "sides"),
    [
        ({H100: 1.0, H200: 0.8}, [(H100, H200, "faster")]),
        ({MI300X: 1.0, MI355X: 0.5}, [(MI300X, MI355X, "faster")]),
        (
            {H100: 1.0, H200: 0.8, MI300X: 0.9},
            [(H100, H200, "faster"), (H100, MI300X, "faster"), (H200, MI300X, "slower")],
        ),
        ({H100: 1.0, MI300X: 0.9}, [(H100, MI300X, "faster")]),
    ],
)
def test_every_two_devices_have_a_verdict(
    tmp_path: Path, seconds: dict[str, float], sides: list[tuple[str, str, str]]
) -> None:
    found = verdicts(tmp_path, [result for device, time in seconds.items() for result in on(device, time)], code=0)
    assert [(one["a"], one["b"], one["verdict"]) for one in found] == sides
    assert all(one["is_decided"] and not one["unproven"] for one in found)
    assert [one["ratio"] for one in found] == pytest.approx([seconds[a] / seconds[b] for a, b, _ in sides], rel=0.005)
    assert bool(compared(tmp_path)["ranking"]) == (len(seconds) > 2), "two sides have no ranking"


FOUR = {H100: 1.0, H200: 0.9, MI300X: 0.901, MI355X: 0.5}


def test_four_devices_have_six_verdicts_and_a_ranking_in_which_a_tie_shares_a_place(tmp_path: Path) -> None:
    results = [result for device, time in FOUR.items() for result in on(device, time, 5)]
    found = report(tmp_path, results, formats="json,md,html")
    assert len(found.json["verdicts"]) == 6 and found.json["by"] == "device"
    (ranking,) = found.json["ranking"]
    places = {one["side"]: one["place"] for one in ranking["sides"]}
    assert places == {MI355X: 1, H200: 2, MI300X: 2, H100: 4} and ranking["is_proven"]
    speed = {one["side"]: one["tokens_per_second_per_gpu"] for one in ranking["sides"]}
    for one in found.json["verdicts"]:
        assert speed[one["b"]] / speed[one["a"]] == pytest.approx(one["ratio"], rel=1e-9), "one estimator"
    for side in (H100, H200, MI300X):  # 2.00x (1.99 to 2.01) of MI355X over H100 is 0.500x of H100 over MI355X
        assert f"| {side} | 5 | {speed[side]:,.0f} | {speed[side] / speed[MI355X]:.3f}x (" in found.markdown
    for text in (found.printed, found.markdown.removeprefix("# "), found.page.partition("<main id")[2]):
        assert "Ranking of 4 sides" in text.partition("is 1.")[0], "it comes first"
    brief = compare.main([str(tmp_path), "--brief", "--output", str(tmp_path / "again")])
    assert brief == 0


@pytest.mark.parametrize("seed", range(4))
def test_one_thing_has_one_number_in_every_format(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    boards = random.permutation(list(BOARDS))[: random.integers(2, 5)]
    results = [
        result
        for device in boards
        for number, seconds in enumerate(random.lognormal(0, 0.3) * random.lognormal(0, 0.05, random.integers(3, 7)), 1)
        for result in on(device, float(seconds), 1, first=number)
    ]
    found = report(tmp_path, results, formats="json,md,html")
    rows = {row["device"]: row["tokens_per_second_per_gpu"]["mean"] for g in found.json["groups"] for row in g["rows"]}
    texts = (found.printed, found.markdown, found.page)
    for device in boards:
        assert all(f"{rows[device]:,.0f}" in re.findall(r"\d[\d,.]*\d", text) for text in texts)
    for ranking in found.json["ranking"]:
        assert {one["side"]: pytest.approx(one["tokens_per_second_per_gpu"]) for one in ranking["sides"]} == rows
    for one in found.json["verdicts"]:
        assert rows[one["b"]] / rows[one["a"]] == pytest.approx(one["ratio"], rel=1e-9)
        said = f"{one['b']} is {times(one['ratio'])} as fast as {one['a']}"
        undecided = f"{one['b']} against {one['a']} is undecided: {times(one['ratio'])}"
        assert all(said in " ".join(text.split()) or undecided in " ".join(text.split()) for text in texts[:2])


def test_places_of_sides_whose_work_is_not_proven_say_so(tmp_path: Path) -> None:
    results = on(H100, 1.0) + on(H200, 0.8) + on(MI300X, 0.7)
    for result in results[:3]:
        del result["performance_metrics"]["loop_seconds"]
    found = report(tmp_path, results, formats="json")
    assert not found.json["ranking"][0]["is_proven"] and "if the work is the same" in found.printed.splitlines()[0]


@pytest.mark.parametrize(
    ("sides", "options", "count", "first"),
    [
        ([on(device, time) for device, time in FOUR.items()], ("--by", "device", "--baseline", MI300X), 3, MI300X),
        ([on(H100, 1 + number / 10, label=f"try-{number}") for number in range(8)], ("--by", "label"), 7, "try-0"),
    ],
    ids=["a baseline", "more than six sides"],
)
def test_each_side_meets_the_baseline_alone_or_the_first_of_many(
    tmp_path: Path, sides: list[list[Result]], options: tuple[str, ...], count: int, first: str
) -> None:
    found = verdicts(tmp_path, [result for side in sides for result in side], *options)
    assert len(found) == count and all(one["a"].startswith(first) for one in found)


def test_a_run_that_failed_before_it_knew_its_device_joins_the_only_one_of_its_platform(tmp_path: Path) -> None:
    failed = failed_early(platform="amd", run=4, **{"training_config__num_gpus": 8})
    results = [*on(H100, 1.0), *on(H200, 0.8), *on(MI300X, 0.9), failed]
    found = report(tmp_path, results, formats="json")
    assert {len(one["files"][1]) for one in found.json["verdicts"] if one["b"] == MI300X} <= {3, 4}
    assert not any("unknown" in one["b"] for one in found.json["verdicts"])


def test_frameworks_of_one_vendor_are_never_one_side(tmp_path: Path) -> None:
    results = on(H100, 1.0, framework="nemo") + on(H100, 0.8, framework="bridge") + on(MI300X, 0.9, framework="prim")
    found = verdicts(tmp_path, results)
    assert sorted((one["framework"], one["runs"]) for one in found) == [
        ("bridge and prim", [3, 3]),
        ("nemo and prim", [3, 3]),
    ]
