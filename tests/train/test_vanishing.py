"""A job whose output, log or data vanish while it runs fails with the reason; nothing is made anew in their place."""

import os
import subprocess
import sys

import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone
from train import launch as launcher
from utils.results import store
from utils.settings.config import ROOT

RESULT = "labelled/train_cpu_mega_llama_run1.json"
RANK = """
import shutil, subprocess, sys
from pathlib import Path
from example import example_result
from toydata import write_toy_data
from train.job.job import Job
from train.job.outcome import Attempt, finalize_result
from utils.settings.config import load

output, data = Path(sys.argv[1]), Path(sys.argv[2])
results = output / "labelled"
{fault}
job = Job(load("cpu", arguments=[f"OUTPUT_DIR={{output}}", "LABEL=labelled"]), "mega", "llama")
finalize_result(Attempt(job, "1" * 64, "a command", "2026-11-22T00:00:00+00:00"), example_result(label="labelled"))
"""
"""A rank without its training: it writes an ok result with the trainers' own function."""
REMOVE_LOGS = "[log.unlink() for log in output.glob('logs/*.log')]"
FAULTS = {
    "output folder renamed": ("output.rename(str(output) + '_renamed')", "was deleted or renamed while the job ran"),
    "output folder deleted": ("shutil.rmtree(output)", "was deleted or renamed while the job ran"),
    "output folder replaced": (
        "output.rename(str(output) + '_renamed'); output.mkdir()",
        "attempt1.log was deleted, moved or replaced while the job ran",
    ),
    "log deleted": (REMOVE_LOGS, "attempt1.log was deleted, moved or replaced while the job ran"),
    "data folder deleted": ("shutil.rmtree(data)", "the data were deleted or damaged while the job ran: "),
    "data replaced": (
        "write_toy_data(data / 'text', seed=1)",
        "the result was complete, but the data were replaced while the job ran",
    ),
    "disk that can only be read": (
        "[subprocess.run(['mount', '-o', how, results, results], check=True) for how in ('bind', 'remount,bind,ro')]",
        "no result could be written: the disk of {results} can only be read",
    ),
}


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Starts a launcher in this process whose ranks are a script with a fault; returns its exit code."""
    prefix, output = write_toy_data(tmp_path / "data" / "text"), tmp_path / "output"

    def run(fault):
        command = [sys.executable, "-c", RANK.format(fault=fault), output, prefix.parent]
        settings = [f"OUTPUT_DIR={output}", f"DATA_DIR={tmp_path / 'cache'}", f"DATASET={prefix}"]
        arguments = ["--platform", "cpu", "--framework", "mega", "--model", "llama", "LABEL=labelled", *settings]
        monkeypatch.setattr(launcher, "_command", lambda job, settings: [str(word) for word in command])
        monkeypatch.setattr(sys, "argv", ["launch", *arguments])
        return launcher.main()

    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests' / 'support'}")
    return run


@pytest.fixture
def output(tmp_path, request):
    """The output folder; afterwards its results are on no disk of their own."""
    if "disk" in request.node.callspec.id and os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    yield tmp_path / "output"
    if "disk" in request.node.callspec.id:
        subprocess.run(["umount", tmp_path / "output" / "labelled"], check=True)


@pytest.mark.parametrize("fault", FAULTS)
def test_job_whose_output_or_data_vanish_fails_with_the_reason(fault, output, ranks, capfd):
    action, reason = FAULTS[fault]
    reason = reason.format(results=output / "labelled")
    assert ranks(action) == 1
    _, said = capfd.readouterr().err.split("train_cpu_mega_llama_run1: failed: ")
    assert reason in said and "Traceback" not in said
    if "renamed" in reason:
        assert not output.exists(), "it is not made anew"
    elif "disk" not in fault:
        result = store.read(output / RESULT)
        assert result["status"] == "failed" and reason in result["reason"]
        assert result["steps"], "what was measured is kept"


def test_same_ranks_without_a_fault_are_ok(tmp_path, ranks):
    assert ranks("") == 0
    assert store.read(tmp_path / "output" / RESULT)["status"] == "ok"


def test_matrix_whose_output_folder_is_renamed_ends_there_and_leaves_no_new_one(tmp_path):
    prefix, output = write_toy_data(tmp_path / "data" / "text"), tmp_path / "output"
    matrix = RunningMatrix(output, prefix, "TRAIN_ITERS=6", fault=f"mega:0:3:rename:{output}")
    try:
        assert matrix.wait() == 1
        assert "was deleted or renamed while the job ran" in matrix.said
        assert "was deleted, renamed or replaced; no job is started" in matrix.said
        assert "hf llama run 1" not in matrix.said and "Traceback" not in matrix.said.split("=== training")[0]
        assert not output.exists()
        assert wait_until_gone(matrix) == []
    finally:
        matrix.end_all()
