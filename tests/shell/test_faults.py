"""Whatever fault hits a job, it leaves a result and the matrix the right exit code, and no process is left.

Real scripts, real trainers, two ranks. After each fault the next job must still run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from example import example_result
from tests.support.matrices import RunningMatrix, wait_until_gone

pytestmark = pytest.mark.full("a matrix of seven real jobs and six of two, about 200 s")


@pytest.fixture
def output(tmp_path):
    """A folder with an older result and an older attempt in it."""
    folder = tmp_path / "output"
    (folder / "superseded").mkdir(parents=True)
    for name in ("train_cpu_mega_qwen_run1.json", "superseded/train_cpu_mega_qwen_run1_attempt1.json"):
        (folder / name).write_text(json.dumps(example_result(model="qwen")))
    return folder


@pytest.fixture
def start(output, prefix, monkeypatch):
    """Starts matrices, and checks at the end that none left a process or a file or touched an older result."""
    older = {path: path.read_bytes() for path in output.rglob("*.json")}
    started = []

    def starter(*settings, fault="", script="train.sh"):
        started.append(RunningMatrix(output, prefix, *settings, fault=fault, script=script))
        return started[-1]

    with tempfile.TemporaryDirectory(prefix="t") as temporary:  # a short path, as there are sockets in it
        monkeypatch.setenv("TMPDIR", temporary)
        yield starter
        left = [wait_until_gone(matrix) for matrix in started]
        for matrix in started:
            matrix.end_all()
        assert left == [[] for _ in started]
        # every job keeps compiled kernels in the same folder, on purpose
        assert [path for path in Path(temporary).iterdir() if not path.name.startswith("torchinductor_")] == []
    assert {path: path.read_bytes() for path in older} == older
    assert not [path for path in output.iterdir() if path.name.startswith(".train_")], "no half file, no reserve"


FAULTS = {
    # the process that is killed, or the fault of tests/shell/faults; status and words of the reason; the last hangs
    "a rank that is killed": (("train.train_mega", 1), "", "failed", ["rank 1 was ended by SIGKILL after step"]),
    "a launcher that is killed": (("train.launch",), "", "failed", ["launcher of the job was ended by SIGKILL after"]),
    "exit 0 too early": ((), "mega:all:3:leave_quietly", "failed", ["exit code 0 after step 3 of 30"]),
    "an allocation that fails": ((), "mega:0:3:allocate", "oom", ["allocate"]),
    # rank 0 may be ended before it has reported the step after which rank 1 died
    "a segmentation fault": ((), "mega:1:3:segfault", "failed", ["rank 1 was ended by SIGSEGV after step"]),
    "a rank that hangs and ignores SIGTERM": (
        (),
        "mega:1:3:ignore_sigterm_and_sleep",
        "timeout",
        ["(STEP_TIMEOUT_SECONDS=30)", "after step 3 of 30", "rank 0: ", "rank 1: ", "% of a core"],
    ),
}


def test_each_fault_has_its_status_and_reason_and_the_next_job_runs(start):
    planted = ",".join(fault for _, fault, _, _ in FAULTS.values())
    matrix = start("STEP_TIMEOUT_SECONDS=30", "FRAMEWORK=mega", f"RUNS={len(FAULTS) + 1}", fault=planted)
    for run, (killed, *_) in enumerate(FAULTS.values(), 1):
        if killed:
            matrix.wait_for_step("mega", 3, run)
            matrix.process_of(*killed).kill()
    assert matrix.wait() == 1
    assert matrix.result("mega", len(FAULTS) + 1)["status"] == "ok"
    for run, (name, (_, _, status, words)) in enumerate(FAULTS.items(), 1):
        result = matrix.result("mega", run)
        assert result["status"] == status and all(word in result["reason"] for word in words), f"{name}: {result}"
        assert result["training_config"]["max_steps"] == 30
    log = (matrix.output / "logs" / f"train_cpu_mega_llama_run{len(FAULTS)}_attempt1.log").read_text()
    _, of_rank_0, of_rank_1 = log.split("--- stack of rank ")
    assert of_rank_0.startswith("0 ") and "train_mega.py" in of_rank_0
    assert of_rank_1.startswith("1 ") and "in sleep_for_ever" in of_rank_1


def test_job_that_never_starts_is_ended_as_a_timeout(start):
    matrix = start("START_TIMEOUT_SECONDS=2", "FRAMEWORK=hf")
    assert matrix.wait() == 1
    result = matrix.result("hf")
    assert result["status"] == "timeout"
    assert "no step was finished in" in result["reason"] and "(START_TIMEOUT_SECONDS=2)" in result["reason"]


ENDS = {
    # a terminal sends a signal to all of its foreground; nobody can catch SIGKILL, so the shell's guard ends the job
    "SIGINT": (os.killpg, "SIGINT", 128 + signal.SIGINT),
    "SIGHUP": (os.killpg, "SIGHUP", 128 + signal.SIGHUP),
    "SIGTERM": (os.kill, "SIGTERM", 128 + signal.SIGTERM),
    "SIGKILL": (os.kill, "SIGTERM", -signal.SIGKILL),
}


@pytest.mark.parametrize("name", ENDS)
def test_end_of_the_matrix_leaves_a_result_for_the_job_in_flight_and_starts_no_other(start, name):
    send, named, code = ENDS[name]
    matrix = start(script="run_train.sh" if name == "SIGKILL" else "train.sh")
    matrix.wait_for_step("mega", 3)
    send(matrix.process.pid, signal.Signals[name])
    assert matrix.wait() == code
    left = wait_until_gone(matrix) if name == "SIGKILL" else matrix.processes()
    assert left == [], "nobody is left once the script has ended"
    result = matrix.result("mega")
    assert result["status"] == "failed" and f"interrupted by {named} after step" in result["reason"]
    assert not (matrix.output / "train_cpu_hf_llama_run1.json").exists()
    assert name == "SIGKILL" or "run the same command again to continue" in matrix.said


@pytest.fixture
def small_disk(output):
    """The output folder on a disk of 3 MiB, with the older results in it."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    kept = {path.relative_to(output): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", output], check=True)
    for path, content in kept.items():
        (output / path).parent.mkdir(exist_ok=True)
        (output / path).write_bytes(content)
    yield output
    subprocess.run(["umount", output], check=True)


def test_disk_that_fills_up_is_the_reason_of_the_job_and_the_next_one_runs_when_there_is_room(small_disk, start):
    matrix = start("TRAIN_ITERS=60")
    matrix.wait_for_step("mega", 3)
    full = ["dd", "if=/dev/zero", f"of={small_disk}/filler"]
    subprocess.run(full, stderr=subprocess.DEVNULL)
    matrix.wait_for((small_disk / "train_cpu_mega_llama_run1.json").exists)
    (small_disk / "filler").unlink()
    assert matrix.wait() == 1
    result = matrix.result("mega")
    said = rf"the disk of {re.escape(str(small_disk))} is full \([\d,]+ bytes free\)"
    assert result["status"] == "failed" and re.match(said, result["reason"]), result["reason"]
    assert len(result["steps"]) == 60, "what was measured is kept"
    assert matrix.result("hf")["status"] == "ok"
