"""Devices of one vendor are sides, every two of several sides have a verdict, and a ranking opens the report."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import report
from sides import BOARDS, H100, H200, MI300X, MI355X, Result, both, compared, on, run, verdicts, write

from evaluate import compare
from evaluate.verdict.ratios import with_interval


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


def test_four_devices_have_a_ranking_in_which_a_tie_shares_a_place(tmp_path: Path) -> None:
    write(tmp_path, [result for device, time in FOUR.items() for result in on(device, time, 5)])
    assert compare.main([str(tmp_path), "--brief"]) == 0
    (ranking,) = json.loads((tmp_path / "compare.json").read_text())["ranking"]
    places = {one["side"]: one["place"] for one in ranking["sides"]}
    assert places == {MI355X: 1, H200: 2, MI300X: 2, H100: 4} and ranking["is_proven"]


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
    for rate, text in product(rows.values(), texts):
        assert f"{rate:,.0f}" in re.findall(r"\d[\d,.]*\d", text)
    for ranking in found.json["ranking"]:
        assert {one["side"]: pytest.approx(one["tokens_per_second_per_gpu"]) for one in ranking["sides"]} == rows
    for one in found.json["verdicts"]:
        assert rows[one["b"]] / rows[one["a"]] == pytest.approx(one["ratio"], rel=1e-9)
        ratio = with_interval(one["ratio"])
        said = rf"{one['b']} (is {ratio} as fast as {one['a']}|against {one['a']} is undecided: {ratio})"
        assert all(re.search(said, " ".join(text.split())) for text in texts[:2])


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


def test_frameworks_of_one_vendor_are_never_one_side(tmp_path: Path) -> None:
    results = on(H100, 1.0, framework="nemo") + on(H100, 0.8, framework="bridge") + on(MI300X, 0.9, framework="prim")
    found = verdicts(tmp_path, results)
    assert sorted((one["framework"], one["runs"]) for one in found) == [
        ("bridge and prim", [3, 3]),
        ("nemo and prim", [3, 3]),
    ]


# Efficiency refers to one node with as many GPUs in use per node, and to nothing else.


def nodes(count: int, seconds: float, runs: int = 2, gpus: int = 8, **changes: Any) -> list[dict[str, Any]]:
    """Return runs on `count` nodes of `gpus` GPUs at a global batch of 64 sequences, `seconds` per step."""
    total = count * gpus
    layout = {"num_gpus": total, "dp": total, "gradient_accumulation": 64 // total} | changes
    found = [run("nvd", number, seconds, label=f"nodes{count}", **both(**layout)) for number in range(1, runs + 1)]
    for result in found if count > 1 else ():
        result["provenance"]["hosts"] = [f"n{node}" for node in range(count)]
    return found


def scaling(folder: Path, *sides: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return what compare.json says of each number of nodes."""
    found = report(folder, [one for side in sides for one in side], "--by", "nodes")
    assert all(one["is_counted"] for g in found.json["groups"] for row in g["rows"] for one in row["results"])
    return {one["nodes"]: one for one in found.json["scaling"]}


def test_efficiency_is_throughput_per_gpu_over_that_of_one_node(tmp_path: Path) -> None:
    """By hand: two nodes that need 0.55 of the time do 1/0.55 = 1.82 times the work with twice the GPUs: 91 %."""
    found = scaling(tmp_path, nodes(1, 1.0), nodes(2, 0.55), nodes(4, 0.3))
    speeds = [(one["gpus"], one["speedup"], one["efficiency"]) for one in found.values()]
    wanted = [(8, 1.0, 1.0), (16, 1 / 0.55, 1 / 0.55 / 2), (32, 1 / 0.3, 1 / 0.3 / 4)]
    assert speeds == [pytest.approx(one, rel=0.01) for one in wanted]
    assert found[2]["efficiency_min"] < found[2]["efficiency"] < found[2]["efficiency_max"]


def test_another_number_of_gpus_a_node_is_no_base_and_another_layout_is_another_system(tmp_path: Path) -> None:
    found = scaling(tmp_path / "gpus", nodes(1, 1.0, gpus=4), nodes(2, 0.3, gpus=8))
    assert found[2]["base_gpus"] is None and found[2]["efficiency"] is None and found[2]["reason"]
    other = nodes(2, 0.5, micro_batch_size=2, gradient_accumulation=2)
    assert scaling(tmp_path / "other", nodes(1, 1.0), other) == {}


def test_scaling_is_shown_only_in_a_comparison_by_nodes(tmp_path: Path) -> None:
    asked, other = (
        report(tmp_path / by, nodes(1, 1.0, runs=5) + nodes(2, 0.55, runs=5), "--by", by, formats="json,md,html")
        for by in ("nodes", "framework")
    )
    assert all("Efficiency" in text and "91" in text for text in (asked.markdown, asked.printed, asked.page))
    assert "Efficiency" not in other.markdown + other.printed + other.page and "scaling" not in other.json
    verdict, scaled = asked.verdict, asked.verdict["scaling"]
    assert (verdict["verdict"], verdict["quantity"]) == ("faster", "tokens/s of the job")
    assert verdict["a"].startswith("8 GPUs") and verdict["b"].startswith("16 GPUs"), "one node is the baseline"
    per_gpu = [scaled["per_gpu_ratio"], scaled["efficiency"], scaled["per_gpu_interval"][0]]
    assert per_gpu == pytest.approx([verdict["ratio"] / 2, verdict["ratio"] / 2, verdict["interval"][0] / 2])
    said = r"the job is 1\.8\d+x .* per GPU 0\.9\d+x .* scaling efficiency 9\d\.\d%"
    assert re.search(said, " ".join(asked.printed.split()))
