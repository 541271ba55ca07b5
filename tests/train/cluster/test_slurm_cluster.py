"""The matrix on a real Slurm cluster of two nodes in this machine: trained, followed, resumed, cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from checkout import ROOT

from tests.support.launching import SHORT, run
from utils.results import store

pytestmark = pytest.mark.full("a real Slurm cluster of two nodes, about 150 s")
ENV_NAMES = "TPRIMAT_ENV_NAMES"
PATIENCE_SECONDS = 240
"""For one job on a busy machine; no test measures time with it."""
ONE_JOB = ("FRAMEWORK=mega", "MODEL=llama", "RUNS=1", "NNODES=2", "RUNTIME=native", "SLURM_TIME=00:10:00")
FAULTS = ROOT / "tests" / "shell" / "faults"


class Submission:
    """`shell/run_slurm.sh` over one job of six short steps on two nodes, with a rank each."""

    def __init__(self, slurm: dict[str, str], output: Path, prefix: Path, *options: str, fault: str = "") -> None:
        self.slurm, self.output = slurm, output
        self._said = output.parent / f"said_{time.monotonic_ns()}.txt"
        where = (f"OUTPUT_DIR={output}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
        faulty = (
            {"PYTHONPATH": str(FAULTS), "TPRIMAT_TEST_FAULT": fault, ENV_NAMES: "TPRIMAT_TEST_FAULT"} if fault else {}
        )
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [ROOT / "shell" / "run_slurm.sh", *SHORT, *ONE_JOB, *where, *options],
                env={**slurm, "PLATFORM": "cpu", "OMP_NUM_THREADS": "1", **faulty},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.2)

    def wait_for_step(self, step: int) -> None:
        logs = self.output / "logs"
        self.wait_for(lambda: any(f"Step {step}/6" in log.read_text() for log in logs.glob("*_attempt*.log")))

    def result(self) -> dict[str, Any]:
        (path,) = store.find([self.output])
        return store.read(path)


def queue(slurm: dict[str, str], field: str = "%i") -> list[str]:
    ran = subprocess.run(["squeue", "-h", "-o", field], env=slurm, capture_output=True, text=True, check=True)
    return ran.stdout.split()


@pytest.fixture
def submit(slurm: dict[str, str], prefix: Path, tmp_path: Path) -> Iterator[Callable[..., Submission]]:
    """Starts submissions, all into one OUTPUT_DIR; none of their jobs is left at the end."""
    started = []

    def starter(*options: str, fault: str = "") -> Submission:
        started.append(Submission(slurm, tmp_path / "output", prefix, *options, fault=fault))
        return started[-1]

    yield starter
    for submission in started:
        if submission.process.poll() is None:
            submission.process.kill()
    if left := queue(slurm):
        subprocess.run(["scancel", *left], env=slurm, check=True)


def test_two_nodes_give_one_valid_result_with_the_curve_of_one_node_and_are_not_trained_again(
    submit: Callable[..., Submission], prefix: Path, tmp_path: Path
) -> None:
    submission = submit()
    assert submission.wait() == 0, submission.said
    two = submission.result()
    assert two["status"] == "ok" and two["label"] == "nodes2"
    assert two["training_config"]["num_gpus"] == two["resolved_config"]["num_gpus"] == 2
    assert two["training_config"]["dp"] == 2 and len(two["provenance"]["hosts"]) == 2
    assert "MASTER_ADDR=127.0.0.1" in two["provenance"]["command"], "the address that Slurm knows the node by"
    one = run("mega", "llama", tmp_path / "one", prefix)
    # float32 sums of the same 8 sequences in another order; the tolerance of two ranks on one node (test_launch.py)
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)
    assert two["fingerprint"]["token_stream_sha256"] == one["fingerprint"]["token_stream_sha256"]
    again = submit()
    assert again.wait() == 0
    assert "has an ok result already" in again.said and "submitted as" not in again.said


def test_node_that_is_lost_makes_a_failed_result_that_names_it(
    submit: Callable[..., Submission], slurm: dict[str, str]
) -> None:
    submission = submit(fault="mega:1:3:sleep_for_ever")
    submission.wait_for_step(3)
    os.kill(slurm_cluster.node_process(slurm, "n2"), signal.SIGKILL)
    assert submission.wait() == 1, submission.said
    result = submission.result()
    assert result["status"] == "failed"
    assert "NODE_FAIL (NodeDown) on n[1-2]; node n2 is down" in result["reason"], result["reason"]
    assert "after step 3 of 6" in result["reason"]
    assert "NODE_FAIL" in submission.said
    assert queue(slurm) == []


def test_job_whose_node_is_lost_is_started_again_by_slurm_and_followed_to_its_result(
    submit: Callable[..., Submission], slurm: dict[str, str]
) -> None:
    with slurm_cluster.node_back(slurm, "n2"):
        submission = submit("--requeue", fault="mega:1:3:sleep_unless_restarted")
        submission.wait_for_step(3)
        os.kill(slurm_cluster.node_process(slurm, "n2"), signal.SIGKILL)
        submission.wait_for(lambda: queue(slurm, "%T") == ["PENDING"])
        with slurm_cluster.node_back(slurm, "n2"):
            (job,) = queue(slurm)
            # Slurm itself would wait two minutes, in which the first start of the step on the lost node ends
            submission.wait_for(lambda: not slurm_cluster.has_step_processes(job))
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], env=slurm, check=True)
            assert submission.wait() == 0, submission.said
            assert submission.result()["status"] == "ok"
            assert submission.result()["attempt"] == 2


def test_interrupt_cancels_the_job_that_an_earlier_command_has_submitted(
    submit: Callable[..., Submission], slurm: dict[str, str]
) -> None:
    with slurm_cluster.node_back(slurm, "n2"):
        first = submit("--no-wait", fault="mega:1:3:sleep_for_ever")
        assert first.wait() == 0, first.said
        (job,) = queue(slurm)
        submission = submit()
        submission.wait_for_step(3)
        submission.wait_for(lambda: "step 3/6" in submission.said)
        assert f"is in the queue already, as Slurm job {job}" in submission.said
        submission.process.send_signal(signal.SIGINT)
        assert submission.wait() == 128 + signal.SIGINT, submission.said
        result = submission.result()
        assert result["status"] == "failed" and "cancelled here after SIGINT" in result["reason"]
        assert "run the same command again to continue" in submission.said
