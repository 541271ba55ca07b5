"""A matrix that is interrupted at random moments and started again ends with the results of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.support.matrices import RunningMatrix, results, wait_until_gone

pytestmark = pytest.mark.full("five matrices of up to four real jobs, about 150 s")
SETTINGS = ("RUNS=2", "TRAIN_ITERS=8")
LONGEST_SECONDS = 35.0
"""About as long as the matrix takes undisturbed here, so that interrupts fall everywhere in it."""
HOW = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "kill the launcher")


def finished(output, prefix, *options):
    """Return a matrix that ran to its end."""
    matrix = RunningMatrix(output, prefix, *SETTINGS, *options)
    assert matrix.wait() == 0, matrix.said
    assert wait_until_gone(matrix) == []
    return matrix


def test_interrupted_and_resumed_matrix_has_the_results_of_an_undisturbed_one(prefix, tmp_path):
    chance = random.Random(1)
    output, done = tmp_path / "output", {}
    for _ in range(3):
        matrix = RunningMatrix(output, prefix, *SETTINGS)
        until = time.monotonic() + chance.uniform(0.5, LONGEST_SECONDS)
        while time.monotonic() < until and matrix.process.poll() is None:
            time.sleep(0.1)
        how = chance.choice(HOW)
        if how == "kill the launcher":
            matrix.end_all("train.launch")
        elif how in ("SIGTERM", "SIGKILL"):
            matrix.process.send_signal(signal.Signals[how])
        elif matrix.process.poll() is None:
            os.killpg(matrix.process.pid, signal.Signals[how])
        matrix.wait()
        assert wait_until_gone(matrix) == []
        ok = {path: path.read_bytes() for path, result in results(output).items() if result["status"] == "ok"}
        assert ok.items() >= done.items(), "a finished job is not run again"
        done = ok
    finished(output, prefix)
    undisturbed = finished(tmp_path / "undisturbed", prefix).output
    found, wanted = ({path.name: result for path, result in results(of).items()} for of in (output, undisturbed))
    assert len(found) == 4 and found.keys() == wanted.keys()
    for name, result in found.items():
        assert result["status"] == "ok"
        assert {key: result[key] for key in ("loss_values", "identity_sha256")}.items() <= wanted[name].items()
    dry = finished(output, prefix, "--dry-run")
    assert "4 jobs, 4 with an ok result already" in dry.said
    assert dry.said.count("has an ok result, is skipped") == 4
    superseded = results(output / "superseded").values()
    assert all(result["status"] == "failed" for result in superseded), "an ok result is never run over"
    assert not [path for path in output.iterdir() if path.name.startswith(".train_")]
