"""A job of two nodes without Slurm: two launchers that meet in OUTPUT_DIR, and one result for every end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toydata import write_toy_data

from example import example_result
from tests.support.launching import SHORT, run
from train.job import nodes
from train.job.job import Job
from train.job.outcome import _verdict
from train.job.processes import StopRequest
from train.job.rank_environment import ENV_NAMES
from train.job.rank_output import RemoteLog
from train.job.supervise import Ending
from train.runner import plan, run_job
from utils.housekeeping.layout import OUTPUT_LAYOUT
from utils.results import store
from utils.settings.config import ROOT, load

FAULTS = ROOT / "tests" / "shell" / "faults"
LIMIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch_two(folder, prefix, *settings, fault="", of_node=({}, {})):
    """Run the launchers of both nodes to their ends; return exit code and output of each."""
    where = (f"OUTPUT_DIR={folder}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}", "NNODES=2")
    where += ("MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}")
    command = [sys.executable, "-m", "train.launch", "--platform", "cpu", "--framework", "mega", "--model", "llama"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FAULTS), "TPRIMAT_TEST_FAULT": fault}
    environment[ENV_NAMES] = "TPRIMAT_TEST_FAULT"
    started = [
        subprocess.Popen(
            [*command, *SHORT, *where, *settings, f"NODE_RANK={node}"],
            cwd=ROOT,
            env=environment | of_node[node],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in (1, 0)
    ]
    said = [process.communicate(timeout=240)[0] for process in started]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)][::-1]


def test_two_nodes_give_one_result_with_the_curve_of_one_and_any_node_shows_the_steps(prefix, tmp_path):
    ended = launch_two(tmp_path / "two", prefix)
    assert [code for code, _ in ended] == [0, 0], ended
    (path,) = store.find([tmp_path / "two"])
    two = store.read(path)
    assert path.parent.name == two["label"] == "nodes2"
    assert two["status"] == "ok" and two["resolved_config"]["num_gpus"] == 2
    assert two["provenance"]["hosts"] == [two["provenance"]["host"]] * 2
    assert {"TPRIMAT_HOSTS", "TPRIMAT_MACHINE", "OMP_NUM_THREADS"} <= set(two["provenance"]["environment_passed"])
    one = run("mega", "llama", tmp_path / "one", prefix)
    # float32 sums of the same 8 sequences in another order; the tolerance of two ranks on one node (test_parallel.py)
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)
    assert two["fingerprint"]["token_stream_sha256"] == one["fingerprint"]["token_stream_sha256"]
    assert ["Step 6/6" in said for _, said in ended] == [True, True]
    logs = tmp_path / "two" / "logs"
    stems = [f"nodes2_train_cpu_mega_llama_run1_attempt1{node}" for node in ("", "_node1")]
    names = {f"{stem}.log" for stem in stems}
    samples = {f"{stem}.energy.jsonl" for stem in stems}
    assert {entry.name for entry in logs.iterdir()} == names | samples, "the meeting place is gone"
    assert sum("Step 6/6" in (logs / name).read_text() for name in names) == 1, "one rank reports"


def test_rank_that_is_killed_on_either_node_is_named(prefix, tmp_path):
    ended = launch_two(tmp_path, prefix, fault="mega:1:3:segfault")
    assert 0 not in [code for code, _ in ended]
    (path,) = store.find([tmp_path])
    result = store.read(path)
    assert result["status"] == "failed"
    assert "rank 1 was ended by SIGSEGV after step 3 of 6" in result["reason"], result["reason"]


def job_of(folder, node, *settings):
    where = (f"OUTPUT_DIR={folder}", "NNODES=2", "MASTER_ADDR=n0", f"NODE_RANK={node}")
    return Job(
        load("cpu", arguments=[*where, "CPU_RANKS=1", *settings]), "mega", "llama", attempt=4 if node == 0 else 1
    )


def meet(*calls):
    """Run the calls at the same time; return what each returns or raises."""
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(*call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def test_nodes_agree_on_the_attempt_whatever_an_earlier_job_has_left(tmp_path):
    first, second = job_of(tmp_path, 0), job_of(tmp_path, 1)
    place = nodes.folder(first)
    store.write_json({"nonce": "old", "beat": 3, "host": "x", "identity": "same"}, place / "node1.json")
    old = {"attempt": 2, "session": "old", "hosts": ["a", "b"], "nonces": {"1": "old"}, "error": None}
    store.write_json(old, place / "start.json")
    stop = StopRequest()
    gathered, joined = meet(
        (nodes.gather, first, "same", LIMIT_SECONDS, stop), (nodes.join, second, "same", LIMIT_SECONDS, stop)
    )
    assert gathered == joined and gathered.attempt == 4 and len(gathered.hosts) == 2
    nodes.close(first)
    assert not place.exists()


def test_what_a_meeting_leaves_when_it_is_killed_has_a_name_that_purge_knows(tmp_path):
    place = nodes.folder(job_of(tmp_path, 0))
    layout = OUTPUT_LAYOUT.layout_of("logs").layout_of(place.name)
    assert [layout.kind_of(name) for name in ("start.json", "node1.json", "ended12.json")] == ["temporary"] * 3


def test_node_with_other_settings_is_not_let_in_and_both_say_so(tmp_path):
    stop = StopRequest()
    ends = meet(
        (nodes.gather, job_of(tmp_path, 0), "these", LIMIT_SECONDS, stop),
        (nodes.join, job_of(tmp_path, 1), "others", LIMIT_SECONDS, stop),
    )
    assert [type(end) for end in ends] == [nodes.NodesError] * 2
    for end in ends:
        assert "node 1 (" in str(end) and "not the settings, data or code of node 0" in str(end)


def test_node_that_does_not_come_is_named_with_what_to_do(tmp_path):
    with pytest.raises(nodes.NodesError, match=r"node 1 of 2 did not come within 0\.1 s .* NODE_RANK; OUTPUT_DIR="):
        nodes.gather(job_of(tmp_path, 0), "same", 0.1, StopRequest())
    with pytest.raises(nodes.NodesError, match=r"node 0 \(n0\) did not answer within 0\.1 s"):
        nodes.join(job_of(tmp_path, 1), "same", 0.1, StopRequest())


def test_launcher_without_its_neighbour_leaves_a_failed_result(prefix, tmp_path):
    where = (f"OUTPUT_DIR={tmp_path}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}", "START_TIMEOUT_SECONDS=1")
    command = [sys.executable, "-m", "train.launch", "--platform", "cpu", "--framework", "mega", "--model", "llama"]
    ran = subprocess.run(
        [*command, *SHORT, *where, "NNODES=2", "MASTER_ADDR=127.0.0.1"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 1 and "did not come" in ran.stderr
    (path,) = store.find([tmp_path])
    assert store.read(path)["status"] == "failed" and "node 1 of 2" in store.read(path)["reason"]
    assert not list(tmp_path.glob("logs/.*"))


def meeting():
    return nodes.Meeting(4, "now", ("one", "two"))


def account(tmp_path, ending, **told):
    """The ending on node 0, merged with the report of node 1."""
    first = job_of(tmp_path, 0)
    if told:
        store.write_json({"x": 1}, nodes.folder(first) / "start.json")
        nodes.report_ending(job_of(tmp_path, 1), meeting(), Ending(**told))
    return nodes.collect_endings(first, meeting(), ending, StopRequest())


def test_end_of_another_node_is_in_the_reason(tmp_path):
    ending = account(tmp_path, Ending(1, last_lines=["a"]), exit_code=1, signals={1: signal.SIGKILL}, last_lines=["b"])
    assert ending.signals == {1: signal.SIGKILL} and ending.last_lines == ["a", "node 1: b"]
    status, reason = _verdict(ending, None)
    assert status == "failed" and "rank 1 was ended by SIGKILL" in reason


def test_hang_that_another_nodes_watchdog_ended_is_a_timeout(tmp_path):
    ending = account(tmp_path, Ending(1), exit_code=-15, overdue="nothing was finished in the 9 s after step 3")
    assert _verdict(ending, None) == ("timeout", "node 1 (two): nothing was finished in the 9 s after step 3")


def test_node_that_says_nothing_any_more_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "ENDINGS_SECONDS", 0.1)
    silent = account(tmp_path, Ending(1))
    assert "node 1 (two) did not say how it ended" in _verdict(silent, None)[1]
    written = {"status": "failed", "reason": "Connection closed by peer"}
    assert _verdict(silent, written)[1].startswith("Connection closed by peer\nnode 1 (two) did not say")
    assert account(tmp_path, Ending(0)).nodes == [], "a complete job whose neighbour has left is complete"


def test_node_that_was_interrupted_or_failed_after_the_result_makes_it_a_failed_one(tmp_path):
    ended = account(tmp_path, Ending(0), exit_code=1, stopped_by=signal.SIGTERM)
    assert ended.nodes == ["node 1 (two) was interrupted by SIGTERM"]
    assert _verdict(ended, {"status": "ok", "reason": None})[0] == "failed"


def test_steps_in_the_log_of_another_node_count_also_when_a_line_comes_in_two_pieces(tmp_path):
    shown: list[str] = []
    other = RemoteLog(tmp_path / "log", lambda _, line: shown.append(line))
    other.read()
    assert other.last_step is None, "the log is not there yet"
    line = "[CPU] Step 4/6 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB\n"
    for number, text in enumerate((f"word\n{line[:9]}", line[9:]), 1):
        with Path(tmp_path / "log").open("a") as log:
            log.write(text)
        other.read()
        assert (other.last_step is not None) == (number == 2)
    assert other.last_step.number == 4 and shown == [line]


def test_machine_in_the_identity_is_the_same_on_all_nodes_and_where_slurm_says_so(tmp_path, monkeypatch):
    identities = {job_of(tmp_path, node).identity("data") for node in (0, 1)}
    assert len(identities) == 1
    assert job_of(tmp_path, 0, "MASTER_ADDR=n9").identity("data") not in identities
    monkeypatch.setenv("TPRIMAT_MACHINE", "2 nodes of Slurm, partition x")
    assert job_of(tmp_path, 0).identity("data") == job_of(tmp_path, 0, "MASTER_ADDR=n9").identity("data")


def test_hosts_of_a_job_are_in_its_provenance(monkeypatch):
    from utils.provenance.origin import describe

    assert "hosts" not in describe("c", "s", "f")
    monkeypatch.setenv("TPRIMAT_HOSTS", "a,b")
    assert describe("c", "s", "f")["hosts"] == ["a", "b"]
    result = example_result()
    for hosts, is_good in ((["a", "b"], True), ([], False), (["a", ""], False), ("a,b", False)):
        result["provenance"]["hosts"] = hosts
        assert any("provenance.hosts" in problem for problem in store.problems(result)) != is_good


def test_other_nodes_run_the_jobs_of_the_matrix_and_write_nothing(prefix, tmp_path, monkeypatch):
    where = (f"OUTPUT_DIR={tmp_path}/output", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    more = ("NNODES=2", "MASTER_ADDR=n0", "NODE_RANK=1", "MODEL=llama", "FRAMEWORK=mega,hf", "RUNS=1", "LABEL=two")
    matrix = plan.make("cpu", [*SHORT, *where, *more])
    ran = tmp_path / "ran"
    command = f"echo $0 >> {ran}; test $0 = hf"
    monkeypatch.setattr(plan, "command", lambda matrix, job: ["sh", "-c", command, job.framework])
    assert run_job.run_on_other_node([matrix], StopRequest()) == 1, "one of the launchers has failed"
    assert ran.read_text().split() == ["mega", "hf"]
    assert not (tmp_path / "output").exists()
    stop = StopRequest()
    stop.signal = signal.SIGTERM
    assert run_job.run_on_other_node([matrix], stop) == 128 + signal.SIGTERM
    assert ran.read_text().split() == ["mega", "hf"]
