"""Real runs through the scripts: a matrix whose report agrees in all its parts, and a sweep that is interrupted."""

from __future__ import annotations

import json
import math
import signal
from typing import Any

import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone

RUNS = 2
SETTINGS = (f"RUNS={RUNS}", "CPU_RANKS=1", "TRAIN_ITERS=16", "GBS=4", "MBS=2", "SL=64", "TARGET_LOSS=20")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunningMatrix:
    prefix = write_toy_data(tmp_path_factory.mktemp("data") / "text")
    output = tmp_path_factory.mktemp("compared") / "output"
    matrix = RunningMatrix(output, prefix, *SETTINGS, script="run_train.sh")
    try:
        assert matrix.wait() == 0, matrix.said
    finally:
        matrix.end_all()
    return matrix


@pytest.fixture(scope="module")
def report(trained: RunningMatrix) -> dict[str, Any]:
    return dict(json.loads((trained.output / "compare.json").read_text()))


def test_two_frameworks_on_one_machine_are_comparable_and_the_verdict_follows_from_their_runs(
    trained: RunningMatrix, report: dict[str, Any]
) -> None:
    (verdict,) = report["verdicts"]
    assert verdict["verdict"] in ("faster", "slower", "tie", "undecided"), verdict["reasons"]
    assert (verdict["model"], verdict["framework"], verdict["track"]) == ("llama", "hf and mega", "equal")
    assert (verdict["runs"], verdict["machines"], verdict["scope"]) == ([RUNS] * 2, [1, 1], "these machines")
    assert not [item for item in verdict["certificate"] if item["state"] == "differs, not comparable"]
    states = {item["name"]: item["state"] for item in verdict["certificate"]}
    same = ("data", "tokens of the first batches in order", "initial weights", "initial loss", "number of parameters")
    assert {name: states[name] for name in same} == dict.fromkeys(same, "same")
    # The ratio by hand, from the steady steps of the results: 4 x 64 tokens each.
    logs = []
    for framework, side in zip(("hf", "mega"), verdict["inputs"], strict=True):
        rates = []
        for run, used in enumerate(side, start=1):
            times = trained.result(framework, run)["step_times"][-used["steady_steps"] :]
            rates.append(4 * 64 * len(times) / sum(times))
            assert used["tokens_per_second_per_gpu"] == pytest.approx(rates[-1])
        logs.append(sum(map(math.log, rates)) / len(rates))
    assert verdict["ratio"] == pytest.approx(math.exp(logs[1] - logs[0]))
    low, high = verdict["interval"]
    assert low < verdict["ratio"] < high


def test_the_target_loss_of_the_settings_is_reported_from_each_runs_curve(
    trained: RunningMatrix, report: dict[str, Any]
) -> None:
    assert report["target_loss"] == 20
    for row in report["groups"][0]["rows"]:
        # Every loss is below 20, so the first window of 10 steps reaches it.
        times = [sum(trained.result(row["framework"], run)["step_times"][:10]) for run in range(1, RUNS + 1)]
        assert row["metrics"]["time_to_target_loss"]["runs"] == pytest.approx(times)


def test_the_verdict_comes_first_in_every_report(trained: RunningMatrix, report: dict[str, Any]) -> None:
    headline = report["verdicts"][0]["headline"]
    assert headline in (trained.output / "compare.md").read_text().split("## ")[0].replace("\\", "")
    last = trained.said.split("=== comparison\n")[1].splitlines()
    assert headline[:40] in last[0] and last[-1] == f"report: {trained.output / 'compare.html'}"
    assert (trained.output / "compare.png").read_bytes().startswith(b"\x89PNG")


# A sweep that is interrupted continues where it stopped: real scripts, a real trainer, two ranks.

POINTS = ("FRAMEWORK=mega", "GBS=8", "MBS=2,3,4", "TRAIN_ITERS=6")
"""GBS=8 is no multiple of two ranks with a micro batch of 3."""


def states(output):
    return [point["state"] for point in json.loads((output / "sweeps" / "sweep.json").read_text())["points"]]


@pytest.mark.full("three real jobs of mega, about 40 s")
def test_after_an_interrupt_the_same_command_trains_only_what_is_missing(tmp_path):
    output, prefix = tmp_path / "output", write_toy_data(tmp_path / "data" / "text")
    first = RunningMatrix(output, prefix, *POINTS, script="sweep.sh")
    first.wait_for(lambda: "=== point 3 of 3: MBS=4" in first.said)
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
    assert wait_until_gone(first) == []
    assert "1 of 3 points are left" in first.said
    assert states(output) == ["ok", "impossible", "waiting"]
    before = (output / "sweep_MBS2" / "train_cpu_mega_llama_run1.json").read_bytes()

    second = RunningMatrix(output, prefix, *POINTS, script="sweep.sh")
    assert second.wait() == 0, second.said
    assert states(output) == ["ok", "impossible", "ok"]
    assert (output / "sweep_MBS2" / "train_cpu_mega_llama_run1.json").read_bytes() == before
    assert (output / "sweep_MBS4" / "train_cpu_mega_llama_run1.json").exists()
    assert (output / "sweeps" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "best: MBS=" in second.said and "2 ok, 1 impossible" in second.said
