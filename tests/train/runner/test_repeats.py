"""RUNS=auto: a matrix gets the runs that its results ask for, alone, interrupted, on Slurm and on another node.

A stand-in for the launcher of a job writes a result with a speed that the test chose; all above it is the real loop.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import threading
import time
from pathlib import Path

import pytest

from example import example_result
from train import matrix as matrix_command
from train import slurm as slurm_command
from train.job import nodes
from train.job.processes import StopRequest
from train.preflight import matrix_checks as preflight
from train.runner import plan, run_job
from train.runner.run_job import conclude
from train.runner.state import MatrixState
from train.runner.status_file import StatusFile
from utils.results import store

DIGEST = "a" * 64
STEADY = [1000 * math.exp(step) for step in (-0.002, 0.0, 0.002)] * 4
"""s = 0.2 %: known within 0.5 % after three runs."""
RESTLESS = [1000.0, 1020.0, 990.0, 1010.0, 995.0, 1005.0, 1000.0]
"""Half widths after 3 to 7 runs, worked out with scipy: 3.8, 2.1, 1.5, 1.1 and 0.92 %."""
WILD = [1000.0, 1200.0] * 5
FAILS = 0.0


class Bench:
    """A matrix of mega and hf, whose launcher writes results with the tokens/s/GPU of each run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, mega: list[float], hf: list[float]) -> None:
        self.output, self.speeds = folder / "output", {"mega": mega, "hf": hf}
        self.started: list[tuple[str, int]] = []
        self.interrupted_run = 0
        (self.output / "logs").mkdir(parents=True)
        monkeypatch.setattr("train.job.job.sha256_code", lambda root: "c" * 64)  # read anew for each job
        monkeypatch.setattr(matrix_command, "_script", lambda *arguments: 0)
        monkeypatch.setattr(plan, "data_digests", lambda config: dict.fromkeys(config.models, DIGEST))
        monkeypatch.setattr(plan, "_known_digest", lambda config, model: DIGEST)
        monkeypatch.setattr(run_job, "run_launcher", self.launch)

    def matrix(self, *settings: str) -> plan.Matrix:
        where = (f"OUTPUT_DIR={self.output}", f"DATA_DIR={self.output.parent}/data")
        return plan.make("cpu", [*where, "MODEL=llama", "FRAMEWORK=mega,hf", "RUNS=auto", *settings])

    def launch(self, matrix, job, on_line, stop, refresh=None) -> int:
        self.started.append((job.framework, job.run))
        if len(self.started) == self.interrupted_run:
            stop.signal = signal.SIGTERM
            return 128 + signal.SIGTERM
        return self.write(job)

    def write(self, job) -> int:
        """Write the result of a job and return its exit code."""
        rate = self.speeds[job.framework][job.run - 1]
        if rate == FAILS:
            return 1
        store.set_aside(job.result_path)
        changes = {"framework": job.framework, "run": job.run, "identity_sha256": job.identity(DIGEST)}
        changes |= {"training_config": job.config.asked(), "repeats": job.rule.as_dict()}
        result = example_result(**changes, performance_metrics__tokens_per_second_per_gpu=rate)
        store.write(result, job.result_path)
        return 0

    def train(self, *settings: str, interrupted_run: int = 0) -> list[tuple[str, int]]:
        """Run the loop; return framework and run of the trainings that it started, in their order."""
        self.started, self.interrupted_run = [], interrupted_run
        matrix, stop = self.matrix(*settings), StopRequest()
        matrix_command._run(matrix, stop, lambda: True, StatusFile(self.output, MatrixState.of(matrix.jobs)))
        return self.started

    def status(self) -> dict:
        return json.loads((self.output / "status.json").read_text())


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return lambda mega, hf: Bench(tmp_path, monkeypatch, mega, hf)


def rounds(first: int, last: int, *frameworks: str) -> list[tuple[str, int]]:
    return [(framework, run) for run in range(first, last + 1) for framework in frameworks]


SEVEN_AND_THREE = [*rounds(1, 3, "mega", "hf"), *rounds(4, 7, "mega")]


def test_each_job_gets_the_runs_that_its_own_results_ask_for_in_rounds(bench, capsys):
    ours = bench(RESTLESS, STEADY)
    assert ours.train() == SEVEN_AND_THREE
    said = capsys.readouterr().out
    assert "--- job 1 of 6 to 20: mega llama run 1" in said and "--- job 10 of 10 to 13: ok" in said
    assert "mega llama: 3 runs, mean known within +-3.8 % (95 %), +-1 % wanted: another run follows" in said
    assert "runs: mega llama: 7 runs, mean known within +-0.92 % (95 %)" in said
    assert "runs: hf llama: 3 runs, mean known within +-0.5 % (95 %)" in said
    ended = ours.status()["runs_ended"]
    assert ended["mega llama"].startswith("7 runs") and ours.status()["jobs_total"] == 10


def test_runs_of_a_job_follow_one_another_when_grouped_is_asked(bench):
    assert bench(RESTLESS, STEADY).train("ORDER=grouped") == [*rounds(1, 7, "mega"), *rounds(1, 3, "hf")]


def test_ten_runs_are_the_most(bench):
    assert bench(WILD, STEADY).train() == [*rounds(1, 3, "mega", "hf"), *rounds(4, 10, "mega")]


@pytest.mark.parametrize("interrupted_run", range(1, 11))
def test_interrupted_matrix_goes_on_to_the_runs_of_an_undisturbed_one(bench, interrupted_run):
    ours = bench(RESTLESS, STEADY)
    assert ours.train(interrupted_run=interrupted_run) == SEVEN_AND_THREE[:interrupted_run]
    assert ours.status()["state"] == "interrupted"
    assert ours.train() == SEVEN_AND_THREE[interrupted_run - 1 :]
    assert ours.train() == [], "a finished matrix is not trained again"
    assert ours.status()["jobs_total"] == 10


def test_a_number_adds_the_runs_that_are_missing_to_those_of_auto(bench):
    ours = bench(STEADY, STEADY)
    assert ours.train() == rounds(1, 3, "mega", "hf")
    assert ours.train("RUNS=5") == rounds(4, 5, "mega", "hf")
    assert ours.train("RUNS=2") == [] and ours.train() == []


def test_auto_goes_on_from_the_runs_of_a_number(bench):
    ours = bench(RESTLESS, STEADY)
    assert ours.train("RUNS=4") == rounds(1, 4, "mega", "hf")
    assert ours.train() == rounds(5, 7, "mega")


def test_forced_matrix_counts_only_its_own_runs(bench):
    ours = bench(RESTLESS, STEADY)
    ours.train()
    ours.speeds["mega"] = STEADY
    assert ours.train("FORCE=1") == rounds(1, 3, "mega", "hf")


def test_job_that_fails_twice_is_not_tried_again_and_the_others_are(bench, capsys):
    ours = bench([FAILS] * 10, STEADY)
    assert ours.train() == [*rounds(1, 2, "mega", "hf"), ("hf", 3)]
    assert "mega llama: 0 runs and 2 failed; no further one, because 2 failed" in capsys.readouterr().out
    assert ours.train() == rounds(1, 2, "mega"), "the same command tries failed runs again, as with a number"


def test_one_failed_run_is_replaced(bench):
    assert bench([*STEADY[:1], FAILS, *STEADY[2:]], STEADY).train() == [*rounds(1, 3, "mega", "hf"), ("mega", 4)]


def test_number_of_runs_is_tried_as_often_as_it_says(bench):
    assert bench([FAILS] * 10, WILD).train("RUNS=4") == rounds(1, 4, "mega", "hf")


def test_plan_states_the_least_and_the_most_before_anything_runs(bench, capsys):
    ours = bench(RESTLESS, STEADY)
    preflight._print_forecast(ours.matrix())
    plan_line, time_line = capsys.readouterr().err.splitlines()[:2]
    rule = "RUNS=auto: 3 to 10 runs of each job, until its mean tokens/s/GPU is known within +-1 % (95 %)"
    assert plan_line == f"plan: 6 to 20 jobs, 0 with an ok result already; {rule}"
    assert time_line.startswith("time: unknown")
    said = plan.text(ours.matrix())
    assert said.count("  runs: train/train_cpu_") == 6 and f"then at most 14 more, by {rule}" in said


def test_plan_after_some_runs_counts_what_is_left_and_its_time(bench, capsys, monkeypatch):
    ours = bench(RESTLESS, STEADY)
    monkeypatch.setattr("platform.node", lambda: "example")  # the host of the results, whose times count
    ours.train(interrupted_run=8)  # mega 1 to 4, hf 1 to 3
    capsys.readouterr()
    preflight._print_forecast(ours.matrix("COOLDOWN_SECONDS=5"))
    plan_line, time_line = capsys.readouterr().err.splitlines()[:2]
    assert plan_line.startswith("plan: 8 to 13 jobs, 7 with an ok result already")
    # each took 10 s by its result: one run of mega is left, 5 more may follow, each after a pause of 5 s
    assert time_line.startswith("time: at least 0:10, at most 1:25 (")
    assert "then at most 5 more" in plan.text(ours.matrix())


def test_plan_does_not_take_the_runs_beside_a_failed_one_for_enough(bench, capsys):
    ours = bench([FAILS, *STEADY[1:]], STEADY)
    assert ours.train() == [*rounds(1, 3, "mega", "hf"), ("mega", 4)]
    capsys.readouterr()
    preflight._print_forecast(ours.matrix())
    # run 1 of mega is tried again, and may change the mean: up to run 10 may follow
    assert capsys.readouterr().err.startswith("plan: 7 to 13 jobs, 6 with an ok result already")


def test_finished_matrix_has_nothing_left_to_do(bench, capsys):
    ours = bench(RESTLESS, STEADY)
    ours.train()
    capsys.readouterr()
    preflight._print_forecast(ours.matrix())
    assert capsys.readouterr().err.startswith("plan: 10 jobs, 10 with an ok result already; RUNS=auto")
    said = plan.text(ours.matrix())
    assert said.count("has an ok result, is skipped") == 10 and "more, by" not in said


def test_result_records_the_rule(bench):
    ours = bench(STEADY, STEADY)
    found = [
        job.empty_result("failed", "a reason", "1" * 64, "a command", "2026-01-01T00:00:00+00:00")
        for job in (ours.matrix().jobs[0], ours.matrix("RUNS=5").jobs[0])
    ]
    assert [result["repeats"]["runs"] for result in found] == ["auto", "5"]
    assert [(result["repeats"]["least"], result["repeats"]["most"]) for result in found] == [(3, 10), (5, 5)]
    assert [result["repeats"]["target_percent"] for result in found] == [1.0, None]
    assert [store.problems(result) for result in found] == [[], []]
    assert store.problems(example_result()) == [], "a result from before the rule"


def test_auto_on_slurm_submits_the_next_round_when_the_results_of_the_last_are_there(bench, monkeypatch, capsys):
    ours = bench(RESTLESS, STEADY)
    queue = slurm_command.slurm_queue
    rounds_submitted = []

    def follow(jobs, view, status, stop) -> None:
        rounds_submitted.append([(one.state.job.framework, one.state.job.run) for one in jobs])
        for one in jobs:
            ours.write(one.state.job)
            conclude(one.state, None)

    monkeypatch.setattr(queue, "queued", lambda names: {})
    monkeypatch.setattr(queue, "submit", lambda script, after=None: "7")
    monkeypatch.setattr(queue, "follow", follow)
    monkeypatch.setattr(slurm_command, "validate", lambda status, stop: len(status.matrix.jobs))
    options = argparse.Namespace(requeue=False, no_wait=False)
    monkeypatch.setenv("TPRIMAT_MACHINE", "")
    slurm = ("LAUNCHER=slurm", "RUNTIME=native")
    status = StatusFile(ours.output, MatrixState.of(ours.matrix(*slurm).jobs))
    assert slurm_command._run(ours.matrix(*slurm), options, StopRequest(), status) == 10
    assert rounds_submitted == [rounds(1, 3, "mega", "hf"), *([("mega", run)] for run in (4, 5, 6, 7))]
    capsys.readouterr()
    (ours.output / store.result_name("cpu", "mega", "llama", 6)).unlink()
    options.no_wait = True
    status = StatusFile(ours.output, MatrixState.of(ours.matrix(*slurm).jobs))
    assert slurm_command._run(ours.matrix(*slurm), options, StopRequest(), status) == 0
    said = capsys.readouterr().out
    assert "mega llama run 6: submitted as Slurm job 7" in said and "run 7" not in said
    assert "it submits the further runs that RUNS=auto decides" in said


def test_another_node_waits_for_the_result_of_node_0_and_starts_the_same_runs(bench, monkeypatch, capsys):
    ours = bench([*RESTLESS[:2], FAILS, *RESTLESS[3:], *STEADY], STEADY)
    several = ("NNODES=2", "MASTER_ADDR=n0")
    undisturbed = ours.train(*several)
    for path in ours.output.rglob("train_*.json"):
        path.unlink()
    monkeypatch.setattr(run_job, "POLL_SECONDS", 0.005)

    def write_failure(job) -> None:
        failed = job.empty_result("failed", "a reason", job.identity(DIGEST), "c", "2026-01-01T00:00:00+00:00")
        store.write(failed, job.result_path)

    def launch(matrix, job, on_line, stop, refresh=None) -> int:
        ours.started.append((job.framework, job.run))
        place = nodes.folder(job)
        place.mkdir()

        def finalize() -> None:  # as node 0 does, later than this node's launcher ends
            if job.run == 1:  # its launcher was killed, and the matrix finalizes
                place.rmdir()
                time.sleep(0.05)
            if ours.write(job):
                write_failure(job)
            if job.run > 1:
                place.rmdir()

        if ours.speeds[job.framework][job.run - 1] == FAILS:  # a rank has written an ok result, which does not stay
            store.write(example_result(), job.result_path)
        threading.Timer(0.05, finalize).start()
        return 0

    write_failure(ours.matrix(*several).jobs[0])  # of an earlier attempt
    monkeypatch.setattr(run_job, "run_launcher", launch)
    ours.started = []
    assert run_job.run_on_other_node([ours.matrix(*several, "NODE_RANK=1")], StopRequest()) == 0
    assert ours.started == undisturbed and len(undisturbed) > 6


def test_another_node_counts_a_job_of_which_node_0_leaves_no_result_as_failed(bench, monkeypatch):
    ours = bench(STEADY, STEADY)
    monkeypatch.setattr(run_job, "RESULT_SECONDS", 0.02)
    monkeypatch.setattr(run_job, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(run_job, "run_launcher", lambda matrix, job, *rest: ours.started.append(job.kind) or 1)
    matrix = ours.matrix("NNODES=2", "MASTER_ADDR=n0", "NODE_RANK=1", "FRAMEWORK=mega")
    assert run_job.run_on_other_node([matrix], StopRequest()) == 1
    assert len(ours.started) == 2
