"""Whatever fault hits a job, it leaves a result and the matrix the right exit code, and no process is left.

Real scripts, real trainers, two ranks. Each fault strikes the first of two jobs, and the second must still run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from toydata import write_toy_data

from example import example_result
from tests.support.matrices import RunningMatrix, wait_until_gone
from utils.results import store


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture
def output(tmp_path):
    """A folder with an older result and an older attempt in it."""
    folder = tmp_path / "output"
    (folder / store.SUPERSEDED).mkdir(parents=True)
    store.write(example_result(model="qwen"), folder / "train_cpu_mega_qwen_run1.json")
    store.write(example_result(model="qwen"), folder / store.SUPERSEDED / "train_cpu_mega_qwen_run1_attempt1.json")
    return folder


@pytest.fixture
def temporary(monkeypatch):
    """The temporary folder of the machine; its path is short, as there are sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def start(output, prefix, temporary):
    """Starts matrices, and checks at the end that none left a process or a file or touched an older result."""
    older = {path: path.read_bytes() for path in output.rglob("*.json")}
    started = []

    def starter(*settings, fault="", script="train.sh"):
        started.append(RunningMatrix(output, prefix, *settings, fault=fault, script=script))
        return started[-1]

    yield starter
    left = [wait_until_gone(matrix) for matrix in started]
    for matrix in started:
        matrix.end_all()
    assert left == [[] for _ in started]
    assert list(temporary.iterdir()) == []
    assert {path: path.read_bytes() for path in older} == older
    assert not [path for path in output.iterdir() if path.name.startswith(".train_")], "no half file, no reserve"


def test_rank_that_is_killed_is_named_and_the_next_job_runs(start):
    matrix = start()
    matrix.wait_for_step("mega", 3)
    matrix.process_of("train.train_mega", rank=1).kill()
    assert matrix.wait() == 1
    result = matrix.result("mega")
    assert result["status"] == "failed"
    assert "rank 1 was ended by SIGKILL after step" in result["reason"]
    assert matrix.result("hf")["status"] == "ok"


def test_killed_launcher_takes_its_ranks_along_and_the_matrix_accounts_for_it(start):
    matrix = start()
    matrix.wait_for_step("mega", 3)
    matrix.process_of("train.launch").kill()
    assert matrix.wait() == 1
    result = matrix.result("mega")
    assert result["status"] == "failed"
    assert "the launcher of the job was ended by SIGKILL after step" in result["reason"]
    assert matrix.result("hf")["status"] == "ok"


@pytest.mark.parametrize("script", ["train.sh", "run_train.sh"])
def test_killed_shell_ends_its_job_and_the_same_command_goes_on(start, script):
    matrix = start(script=script)
    matrix.wait_for_step("mega", 3)
    matrix.process.kill()
    assert matrix.wait() == -signal.SIGKILL
    assert wait_until_gone(matrix) == []
    result = matrix.result("mega")
    assert result["status"] == "failed" and "interrupted by SIGTERM after step" in result["reason"]
    assert not (matrix.output / store.result_name("cpu", "hf", "llama", 1)).exists()
    again = start()
    assert again.wait() == 0, again.said
    assert [again.result(name)["status"] for name in ("mega", "hf")] == ["ok", "ok"]
    assert [again.result(name)["attempt"] for name in ("mega", "hf")] == [2, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_leaves_a_result_for_the_job_in_flight_and_starts_no_other(start, number):
    matrix = start()
    matrix.wait_for_step("mega", 3)
    if number == signal.SIGTERM:
        matrix.process.send_signal(number)
    else:  # a terminal sends it to all of its foreground
        os.killpg(matrix.process.pid, number)
    assert matrix.wait() == 128 + number
    assert matrix.processes() == [], "nobody is left once the script has ended"
    result = matrix.result("mega")
    assert result["status"] == "failed"
    assert f"interrupted by {number.name} after step" in result["reason"]
    assert not (matrix.output / store.result_name("cpu", "hf", "llama", 1)).exists()
    assert "run the same command again to continue" in matrix.said


@pytest.mark.parametrize("fault", ["sleep_for_ever", "ignore_sigterm_and_sleep"])
def test_rank_that_hangs_is_ended_as_a_timeout_with_the_stacks_in_the_log(start, fault):
    matrix = start("STEP_TIMEOUT_SECONDS=15", fault=f"mega:1:3:{fault}")
    assert matrix.wait() == 1
    result = matrix.result("mega")
    assert result["status"] == "timeout"
    assert "(STEP_TIMEOUT_SECONDS=15)" in result["reason"] and "after step 3 of 30" in result["reason"]
    assert "rank 0: " in result["reason"] and "rank 1: " in result["reason"] and "% of a core" in result["reason"]
    log = (matrix.output / "logs" / "train_cpu_mega_llama_run1_attempt1.log").read_text()
    _, of_rank_0, of_rank_1 = log.split("--- stack of rank ")
    assert of_rank_0.startswith("0 ") and "train_mega.py" in of_rank_0
    assert of_rank_1.startswith("1 ") and "in sleep_for_ever" in of_rank_1
    assert matrix.result("hf")["status"] == "ok"


def test_job_that_never_starts_is_ended_as_a_timeout(start):
    matrix = start("START_TIMEOUT_SECONDS=2", "FRAMEWORK=hf")
    assert matrix.wait() == 1
    result = matrix.result("hf")
    assert result["status"] == "timeout"
    assert "no step was finished in" in result["reason"] and "(START_TIMEOUT_SECONDS=2)" in result["reason"]


ENDS = {
    "exit 0 too early": ("mega:all:3:leave_quietly", "failed", "exit code 0 after step 3 of 30"),
    "an allocation that fails": ("mega:0:3:allocate", "oom", "allocate"),
    "a segmentation fault": ("mega:1:3:segfault", "failed", "rank 1 was ended by SIGSEGV after step 3 of 30"),
}


@pytest.mark.parametrize("end", ENDS)
def test_end_of_a_trainer_has_its_status_and_reason_and_the_next_job_runs(start, end):
    fault, status, reason = ENDS[end]
    matrix = start(fault=fault)
    assert matrix.wait() == 1
    result = matrix.result("mega")
    assert result["status"] == status and reason in result["reason"], result["reason"]
    assert result["training_config"]["max_steps"] == 30
    assert matrix.result("hf")["status"] == "ok"
    assert "REJECTED" not in matrix.said or status in matrix.said


def test_loss_that_is_not_finite_ends_each_job_as_nan(start):
    matrix = start("LR=1e30", "CLIP_GRAD=1e30", "MIN_LR=1e30", "WARMUP_ITERS=0")
    assert matrix.wait() == 1
    for framework in ("mega", "hf"):
        assert matrix.result(framework)["status"] == "nan"


@pytest.fixture
def small_disk(output):
    """The output folder on a disk of 2 MiB, with the older results in it."""
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
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(512))
            except OSError:
                break
    matrix.wait_for(lambda: (small_disk / store.result_name("cpu", "mega", "llama", 1)).exists())
    filler.unlink()
    assert matrix.wait() == 1
    result = matrix.result("mega")
    assert result["status"] == "failed"
    assert re.match(rf"the disk of {re.escape(str(small_disk))} is full \([\d,]+ bytes free\)", result["reason"]), (
        result["reason"]
    )
    assert len(result["steps"]) == 60, "what was measured is kept"
    assert matrix.result("hf")["status"] == "ok"
