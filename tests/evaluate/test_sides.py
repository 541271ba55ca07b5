"""A side is one device, one partition mode and one layout, and one thing has one number in every report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from changes import Change, each, in_runs, into, samples, settings, times, unknown
from reports import Report, report
from sides import Result, both, conditions, gpus, make_consistent, run, runs

H200 = {"gpu_info__device_name": "NVIDIA H200", "gpu_info__total_memory_gb": 150.0}
CPX = {"gpu_info__total_memory_gb": 25.7, "gpu_info__gpu_cores": 2432}


def micro_batch(size: int) -> dict[str, Any]:
    return both(micro_batch_size=size, gradient_accumulation=8 // size)


judged = partial(report, formats="json,md")


def printed(found: Report) -> str:
    return " ".join(found.printed.split())


def changed(results: list[Result], change: Change) -> list[Result]:
    """Return the results after a change of each."""
    for result in results:
        change(result)
    return results


# --- devices and partitions ------------------------------------------------------------------------------------------


def test_names_of_one_board_are_one_side(tmp_path: Path) -> None:
    other_name = {"gpu_info__device_name": "AMD Instinct MI300X OAM"}
    found = judged(tmp_path, runs("nvd", 1.0) + runs("amd", 0.9, 2) + runs("amd", 0.9, 2, first=3, **other_name))
    assert (found.verdict["verdict"], found.verdict["runs"]) == ("faster", [3, 4])


@pytest.mark.parametrize(
    "part",
    [
        CPX,
        {"gpu_info__total_memory_gb": 25.7, "gpu_info__gpu_cores": None, "gpu_info__reasons": {"gpu_cores": "x"}},
        {"gpu_info__gpu_cores": 2432},
        {"conditions": conditions(partition="CPX/NPS4")},
        {"gpu_info__device_name": "AMD Instinct MI300X VF", "gpu_info__total_memory_gb": 25.7},
    ],
    ids=["memory and cores", "memory", "cores", "conditions", "virtual function"],
)
def test_a_partition_against_a_whole_device_is_not_comparable(tmp_path: Path, part: dict[str, Any]) -> None:
    known = {"gpu_info__reasons": {"software_version": "x", "driver_version": "x"} | part.get("gpu_info__reasons", {})}
    found = judged(tmp_path, runs("nvd", 1.0) + runs("amd", 7.2, **part | known))
    assert (found.code, found.verdict["verdict"], found.verdict["ratio"]) == (3, "not_comparable", None)
    assert found.verdict["reasons"][0].startswith("not the same kind of thing, a part of a device against a whole one")
    assert "1/8 of a device" in found.verdict["b"] and "not the same kind of thing" in printed(found)


# --- layouts and sizes -----------------------------------------------------------------------------------------------


def test_in_best_the_fastest_layout_is_the_sides_and_the_others_are_listed(tmp_path: Path) -> None:
    """Averaged, 1.2, 1.0 and 0.9 s would be about 1.02 s; the side's layout is the one with 0.9 s."""
    results = runs("amd", 0.81, method="best")
    for seconds, first, size in ((1.2, 1, 1), (1.0, 4, 2), (0.9, 7, 4)):
        results += runs("nvd", seconds, first=first, method="best", **micro_batch(size))
    found = judged(tmp_path, results)
    assert found.verdict["ratio"] == pytest.approx(0.9 / 0.81, rel=0.005)
    assert found.verdict["sides"][0]["micro_batch_size"] == 4 and found.verdict["runs"] == [3, 3]
    reasons = [one["reason"] for one in found.verdict["left_out"]]
    ratios = [float(re.findall(r": ([\d.]+)x as fast", reason)[0]) for reason in reasons]
    assert ratios == pytest.approx([0.9 / 1.2, 0.9], rel=0.01) and "8 GPUs, MBS 1" in reasons[0]
    assert "the fastest by its own interval" in printed(found)


def test_a_single_fast_run_is_no_fastest_layout(tmp_path: Path) -> None:
    lucky = runs("nvd", 0.5, 1, first=9, method="best", **micro_batch(2))
    found = judged(tmp_path, runs("nvd", 1.0, method="best") + lucky + runs("amd", 0.9, method="best"))
    assert found.verdict["ratio"] == pytest.approx(1 / 0.9, rel=0.005)
    assert "2.00x as fast, 1 run" in found.verdict["left_out"][0]["reason"]


def test_pairs_meet_at_equal_size(tmp_path: Path) -> None:
    results = [
        result
        for platform, seconds in (("nvd", 1.0), ("amd", 0.9))
        for count, share in ((8, 1.0), (16, 0.55))
        for result in runs(platform, seconds * share, first=count, **gpus(count))
    ]
    found = [
        (one["verdict"], one["b"], [side["num_gpus"] for side in one["sides"]])
        for one in judged(tmp_path, results).json["verdicts"]
    ]
    assert sorted(found) == [("faster", f"AMD Instinct MI300X ({n} GPUs)", [n, n]) for n in (16, 8)]


@pytest.mark.parametrize("method", ["equal", "best"])
def test_sides_of_no_common_size_are_not_comparable(tmp_path: Path, method: str) -> None:
    found = judged(tmp_path, runs("nvd", 1.0, method=method) + runs("amd", 0.5, method=method, **gpus(16)))
    assert found.verdict["reasons"][0].startswith("number of GPUs differs: 8 against 16")


def test_a_layout_without_a_counterpart_is_named(tmp_path: Path) -> None:
    found = judged(tmp_path, runs("nvd", 1.0) + runs("amd", 0.9) + runs("amd", 0.8, first=4, **micro_batch(2)))
    assert found.verdict["verdict"] == "faster" and found.verdict["ratio"] == pytest.approx(1 / 0.9, rel=0.005)
    (left_out,) = found.verdict["left_out"]
    assert "MBS 2" in left_out["reason"] and len(left_out["files"]) == 3
    assert "because the other side has no run of" in printed(found)


# --- one number for one thing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [30, 62])
def test_a_slow_start_is_cut_everywhere_and_named(tmp_path: Path, steps: int) -> None:
    """The first steps take 1.4 times as long, and the summary is that of all but the first tenth."""
    longer = samples("step_times", lambda place, time: float(f"{time * (1.4 if place < steps else 1):.6g}"))
    found = judged(tmp_path, runs("nvd", 1.0) + changed(runs("amd", 1.0), each(longer, make_consistent)))
    verdict, (a, b) = found.verdict, found.json["groups"][0]["rows"]
    assert verdict["verdict"] == "tie" and verdict["ratio"] == pytest.approx(1, abs=0.01)
    for one, other in (
        (b["tokens_per_second_per_gpu"]["mean"], a["tokens_per_second_per_gpu"]["mean"]),
        (a["step_time_seconds"]["mean"], b["step_time_seconds"]["mean"]),
        [row["metrics"]["tokens_per_second_per_gpu"]["value"] for row in (b, a)],
    ):
        assert one / other == pytest.approx(verdict["ratio"], rel=2e-3)
    cut = f"steps {steps + 1} to 100"
    assert b["steady_steps"] == cut and cut in verdict["sentence"] and cut in printed(found)
    assert any(f"the first {steps} of 100 steps are cut" in remark for remark in verdict["remarks"])


# --- losses and odd runs ---------------------------------------------------------------------------------------------


def seeded(platform: str, seconds: float, factors: Sequence[float] = (1.0, 1.0, 1.0)) -> list[Result]:
    """Return a run for each seed, with a last loss that depends on the seed by 4 %, times these factors."""
    found = []
    for seed, factor in enumerate(factors, 1):
        (result,) = runs(platform, seconds, 1, first=seed, **both(seed=seed))
        result["fingerprint"] |= {"token_stream_sha256": f"{seed}" * 64, "initial_weights_sha256": f"{seed}" * 64}
        result["loss_values"] = [loss * (1 + 0.04 * seed) for loss in result["loss_values"]]
        result["loss_values"][50:] = [loss * factor for loss in result["loss_values"][50:]]
        found.append(result)
    return found


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((1.0, 1.0, 1.0), "faster"),
        ((1.03, 1.03, 1.03), "not_comparable"),
        ((1.05, 1.0, 0.95), "not_comparable"),  # they agree only on average
    ],
)
def test_losses_are_compared_seed_by_seed(tmp_path: Path, factors: Sequence[float], verdict: str) -> None:
    found = judged(tmp_path, seeded("nvd", 1.0) + seeded("amd", 0.9, factors)).verdict
    assert found["verdict"] == verdict
    assert verdict == "faster" or any("final losses are not shown to agree" in reason for reason in found["reasons"])


ODD: dict[str, tuple[Change, str]] = {
    "data": (into("fingerprint", dataset_bin_sha256="7" * 64), "data 777777777777"),
    "learning rate": (each(settings(lr=2e-3), make_consistent), "0.002"),
    "loss": (samples("loss_values", lambda place, loss: loss * (1 + place / 400)), "last loss 3.7"),
    "order": (into("fingerprint", token_stream_sha256="7" * 64), "tokens of the first batches in order"),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_run_is_named_and_left_out_and_the_side_stays(tmp_path: Path, odd: str) -> None:
    change, words = ODD[odd]
    found = judged(tmp_path, runs("nvd", 1.0, 4) + changed(runs("amd", 0.9, 4), in_runs(change, 3)))
    assert (found.verdict["verdict"], found.verdict["runs"]) == ("faster", [4, 3])
    assert any("1 of 4 runs does not count: left out" in line and words in line for line in found.verdict["weaknesses"])
    assert "left out of its side" in printed(found)
    counted = [one["is_counted"] for group in found.json["groups"] for row in group["rows"] for one in row["results"]]
    assert counted.count(False) == 1


def test_chaos_makes_no_run_odd(tmp_path: Path) -> None:
    """The last loss of an unstable training is another in each run, so that none is left out for it."""
    leap = samples("loss_values", lambda place, loss: 20.0 if place == 30 else loss)
    unstable = changed(runs("amd", 0.9, 4), each(leap, in_runs(ODD["loss"][0], 3)))
    found = judged(tmp_path, runs("nvd", 1.0, 4) + unstable).verdict
    assert (found["verdict"], found["runs"]) == ("faster", [4, 4])
    assert found["unproven"] == ["stability of the training"]


@pytest.mark.parametrize(
    ("count", "odd"),
    [
        *((4, {3: name, 4: name}) for name in ODD),
        (5, {1: "data", 2: "learning rate", 3: "order"}),  # each property has a majority, only two runs agree in all
    ],
)
def test_without_a_majority_the_side_is_refused(tmp_path: Path, count: int, odd: dict[int, str]) -> None:
    change = each(*(in_runs(ODD[name][0], number) for number, name in odd.items()))
    found = judged(tmp_path, runs("nvd", 1.0, 4) + changed(runs("amd", 0.9, count), change))
    assert (found.verdict["verdict"], found.verdict["runs"]) == ("not_comparable", [4, count])


@pytest.mark.parametrize(
    "change",
    [
        in_runs(each(times(1.4), make_consistent), 4),
        # the published logs of MLPerf name no seed, and the first losses of one system lie 2 % apart
        each(unknown("resolved_config", "seed"), in_runs(samples("loss_values", lambda _, loss: loss * 0.985), 4)),
    ],
    ids=["speed", "loss of an unknown seed"],
)
def test_a_run_is_never_left_out_for_its_speed_or_for_a_loss_of_an_unknown_seed(tmp_path: Path, change: Change) -> None:
    found = judged(tmp_path, runs("nvd", 1.0, 4) + changed(runs("amd", 0.9, 4), change))
    assert found.verdict["runs"] == [4, 4]


# Results that make no pair are told why, and results that do make one need no reason.

LOG_OF = {side: runs("amd", seconds, label=side, source="log") for side, seconds in (("new", 0.9), ("old", 1.0))}
"""Results of three logs of a label; `platform` is unknown where the log names none."""
UNNAMED = {side: [result | {"platform": "unknown"} for result in results] for side, results in LOG_OF.items()}
ONE_SIDE = [run("nvd", number) for number in (1, 2)]


@pytest.mark.parametrize(
    ("results", "by", "words", "has_verdict"),
    [
        # logs are compared by label, and told what to do where one side names no platform
        (UNNAMED["new"] + UNNAMED["old"], "label", "old on AMD Instinct MI300X", True),
        (LOG_OF["new"] + LOG_OF["old"], "label", "old on AMD Instinct MI300X", True),
        (
            LOG_OF["new"] + UNNAMED["old"],
            "label",
            "differ in platform too (amd against unknown): extract the log again with --platform",
            False,
        ),
        # one side has its name in the reason
        (ONE_SIDE, "platform", "all results have one platform: nvd", False),
        (ONE_SIDE, "framework", "all results have one framework: mega", False),
        (ONE_SIDE, "machine", "all results have one machine: nvd-1", False),
        (ONE_SIDE, "nodes", "all results have one number of GPUs: 8", False),
        (ONE_SIDE, "label", "all results have one label: no label", False),
        # two sides that differ in more are told in what
        (
            [run("nvd"), run("amd", 1, 0.9, model="qwen")],
            "platform",
            "amd and nvd differ in model too (qwen against llama)",
            False,
        ),
        (
            [run("nvd"), run("amd", 1, 0.9, framework="hf")],
            "platform",
            "amd and nvd differ in framework too (hf against mega)",
            False,
        ),
        (
            [run("nvd"), run("amd", 1, 0.9, label="x")],
            "label",
            "no label and x differ in platform too (nvd against amd)",
            False,
        ),
        (
            [run("nvd"), run("amd", 1, 0.9)],
            "machine",
            "amd-1 and nvd-1 differ in platform too (amd against nvd)",
            False,
        ),
        ([run("nvd"), run("amd", 1, 0.9)], "platform", "", True),
    ],
)
def test_results_that_make_no_pair_are_told_why(
    tmp_path: Path, results: list[Result], by: str, words: str, has_verdict: bool
) -> None:
    found = report(tmp_path, results, "--by", by, formats="json,md")
    printed = " ".join(found.printed.split())
    assert words in printed and "Traceback" not in found.errors
    assert (bool(found.json["verdicts"]), found.json["by"]) == (has_verdict, by)
    for text in (found.printed, found.markdown.splitlines()[2]):
        assert text.startswith("No verdict: ") != has_verdict, text
