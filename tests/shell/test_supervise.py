"""Signals reach the job in the container, no container is left behind, and the exit code is the job's."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from tests.support.engine_cases import ALL, LIMIT_SECONDS, Machine, heed_signals

every_engine = pytest.mark.parametrize("engine", ALL.split())
docker_and_podman = pytest.mark.parametrize("engine", ["docker", "podman"])
PATIENT = """
for name in INT TERM HUP; do trap "echo got-$name >>$STANDIN_OUT; sleep 0.2; exit 7" $name; done
echo started >>$STANDIN_OUT
while :; do sleep 0.05; done
"""
"""A job that ends cleanly some time after a signal."""


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


def start(machine, engine, job=PATIENT, script="run_train.sh", **changes):
    process = machine.start(script, "PLATFORM=cpu", RUNTIME=engine, STANDIN_JOB=job, GRACE_SECONDS="20", **changes)
    machine.wait_for("started")
    return process


def kill_client(machine):
    """Kill the engine's client, not the container, of the script under test."""
    killed = 0
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        is_client = any(word.endswith("engine.py") for word in words)
        if is_client and process.environ()["STANDIN_STATE"] == str(machine.state):
            process.kill()
            killed += 1
    assert killed == 1


def ended(machine, process):
    """Check that no container is left, and return the exit code."""
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert not list(machine.state.iterdir()), stderr
    return process.returncode


@every_engine
@pytest.mark.parametrize("script", ["run_train.sh", "run_data.sh", "run_wrap.sh", "run_purge.sh"])
def test_the_exit_code_is_the_jobs(script, engine, machine):
    done = machine.run(script, "PLATFORM=cpu", RUNTIME=engine, STANDIN_JOB="echo said; exit 42")
    assert (done.returncode, done.stdout) == (42, "said\n")
    assert not list(machine.state.iterdir())


@every_engine
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_to_the_script_reaches_the_job_which_ends_in_its_own_way(name, engine, machine):
    process = start(machine, engine)
    process.send_signal(signal.Signals[f"SIG{name}"])
    assert ended(machine, process) == 7
    assert machine.out.read_text().split() == ["started", f"got-{name}"], "once"


@docker_and_podman
def test_a_signal_to_the_whole_group_as_ctrl_c_is_reaches_the_job_once(engine, machine):
    process = start(machine, engine)
    os.killpg(process.pid, signal.SIGINT)
    assert ended(machine, process) == 7
    assert machine.out.read_text().split() == ["started", "got-INT"]


@docker_and_podman
def test_a_client_that_is_killed_leaves_no_container(engine, machine):
    process = start(machine, engine)
    kill_client(machine)
    assert ended(machine, process) == 128 + signal.SIGKILL
    assert machine.out.read_text().split() == ["started", "got-TERM"]


@every_engine
def test_a_job_that_heeds_no_signal_is_ended_all_the_same(engine, machine):
    deaf = "trap '' TERM; echo started >>$STANDIN_OUT; while :; do sleep 0.05; done"
    process = machine.start("run_train.sh", "PLATFORM=cpu", RUNTIME=engine, STANDIN_JOB=deaf, GRACE_SECONDS="1")
    machine.wait_for("started")
    kill_client(machine)
    assert ended(machine, process) == 128 + signal.SIGKILL


@every_engine
def test_nohup_is_honoured(engine, machine):
    machine.add_tool("nohup", "trap '' HUP; exec \"$@\"")
    process = subprocess.Popen(
        [machine.bin / "nohup", machine.checkout / "shell" / "run_train.sh", "PLATFORM=cpu"],
        env=machine.environment | {"RUNTIME": engine, "STANDIN_JOB": PATIENT, "GRACE_SECONDS": "20"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    machine.wait_for("started")
    os.killpg(process.pid, signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert ended(machine, process) == 7
    assert "got-HUP" not in machine.out.read_text()


@docker_and_podman
def test_a_container_has_a_name_of_its_own_and_is_removed(engine, machine):
    first, second = (machine.container("run_train.sh", engine=engine) for _ in range(2))
    assert first.options("--name") != second.options("--name")
    assert first.options("--rm") == ["true"] and first.options("--sig-proxy") == ["false"]
    assert not first.options("--tty") and not first.options("--interactive"), "no terminal here"


@docker_and_podman
def test_an_init_reaps_and_hands_on_where_the_engine_has_one(engine, machine):
    assert machine.container("run_train.sh", engine=engine).options("--init") == ["true"]
    (machine.bin / "catatonit").unlink()
    container = machine.container("run_train.sh", engine=engine)
    ours = [] if engine == "docker" else ["shell/inside/start.sh", "--init"]  # docker brings its own
    assert container.options("--init") == ([] if ours else ["true"])
    assert container["command"] == [*ours, "shell/run_train.sh", "--here"]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_our_own_init_hands_on_signals_once_and_returns_the_exit_code(name, machine):
    command = [machine.checkout / "shell" / "inside" / "start.sh", "--init", "bash", "-c", PATIENT]
    process = subprocess.Popen(command, env=machine.environment, start_new_session=True, preexec_fn=heed_signals)
    machine.wait_for("started")
    process.send_signal(signal.Signals[f"SIG{name}"])
    assert process.wait(LIMIT_SECONDS) == 7
    assert machine.out.read_text().split() == ["started", f"got-{name}"]
    assert machine.run("inside/start.sh", "--init", "bash", "-c", "cat; exit 3", popen={"input": "x"}).returncode == 3
    assert machine.run("inside/start.sh", "--init", "bash", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


@every_engine
def test_what_is_piped_into_entry_reaches_the_command(engine, machine):
    done = machine.run("entry.sh", RUNTIME=engine, PLATFORM="cpu", STANDIN_JOB="cat; exit 5", popen={"input": "piped"})
    assert (done.returncode, done.stdout) == (5, "piped")
