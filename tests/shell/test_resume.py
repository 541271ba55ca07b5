"""A matrix that is interrupted at random moments and started again ends with the results of an undisturbed one.

TPRIMAT_INTERRUPTED_MATRICES sets how many (default 2): ten were run by hand, see docs/examples/.
"""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone
from utils.results import store

COUNT = int(os.environ.get("TPRIMAT_INTERRUPTED_MATRICES", "2"))
SETTINGS = ("RUNS=2", "TRAIN_ITERS=8")
JOBS = [(framework, run) for run in (1, 2) for framework in ("mega", "hf")]
LONGEST_SECONDS = 35.0
"""About as long as the matrix takes undisturbed here, so that interrupts fall everywhere in it."""


def interrupt(matrix: RunningMatrix, how: str) -> None:
    if how == "kill the launcher":
        for process in matrix.processes():
            try:
                if "train.launch" in process.cmdline():
                    process.kill()
            except psutil.Error:
                continue
    elif how == "kill the matrix":
        matrix.process.kill()
    elif how == "SIGTERM":
        matrix.process.terminate()
    elif matrix.process.poll() is None:
        os.killpg(matrix.process.pid, {"SIGINT": signal.SIGINT, "SIGHUP": signal.SIGHUP}[how])


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="module")
def undisturbed(prefix, tmp_path_factory):
    matrix = RunningMatrix(tmp_path_factory.mktemp("undisturbed") / "output", prefix, *SETTINGS)
    assert matrix.wait() == 0, matrix.said
    return matrix


@pytest.mark.parametrize("seed", range(COUNT))
def test_interrupted_and_resumed_matrix_has_the_results_of_an_undisturbed_one(seed, undisturbed, prefix, tmp_path):
    chance = random.Random(seed)
    output, done = tmp_path / "output", {}
    for _ in range(3):
        matrix = RunningMatrix(output, prefix, *SETTINGS)
        until = time.monotonic() + chance.uniform(0.5, LONGEST_SECONDS)
        while time.monotonic() < until and matrix.process.poll() is None:
            time.sleep(0.1)
        interrupt(matrix, chance.choice(["SIGINT", "SIGTERM", "SIGHUP", "kill the launcher", "kill the matrix"]))
        matrix.wait()
        assert wait_until_gone(matrix) == []
        for path in output.glob("train_*.json"):
            if path in done:
                assert path.read_bytes() == done[path], "a finished job is not run again"
            elif store.read(path)["status"] == "ok":
                done[path] = path.read_bytes()
    last = RunningMatrix(output, prefix, *SETTINGS)
    assert last.wait() == 0, last.said
    assert wait_until_gone(last) == []
    for framework, run in JOBS:
        result, wanted = last.result(framework, run), undisturbed.result(framework, run)
        assert result["status"] == "ok" and result["loss_values"] == wanted["loss_values"]
        assert result["identity_sha256"] == wanted["identity_sha256"]
    dry = RunningMatrix(output, prefix, *SETTINGS, "--dry-run")
    assert dry.wait() == 0 and "4 jobs, 4 with an ok result already" in dry.said
    assert dry.said.count("has an ok result, is skipped") == 4
    names = sorted(path.name for path in output.glob("train_*.json"))
    assert names == sorted(path.name for path in undisturbed.output.glob("train_*.json"))
    kept = [store.read(path) for path in (output / store.SUPERSEDED).glob("*.json")]
    assert all(result["status"] == "failed" for result in kept), "an ok result is never run over"
    assert not [path for path in output.iterdir() if path.name.startswith(".train_")]


def test_skipped_job_leaves_no_reserve_of_a_launcher_that_was_killed_last(undisturbed, prefix):
    results_before = {path: path.read_bytes() for path in undisturbed.output.glob("train_*.json")}
    reserves = [path.with_name(f".{path.name}.reserve") for path in results_before]
    for path in reserves:
        path.touch()
    again = RunningMatrix(undisturbed.output, prefix, *SETTINGS)
    assert again.wait() == 0, again.said
    assert {path: path.read_bytes() for path in results_before} == results_before
    assert reserves and not any(path.exists() for path in reserves)
