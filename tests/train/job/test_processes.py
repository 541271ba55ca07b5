"""No process outlives its job: not in its own session, not when it ignores SIGTERM, not when its parent is killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from train.job.processes import stop_request
from utils.settings.config import ROOT

RUN = """
import os, signal, subprocess, sys, time
from train.job import processes
{body}
"""
SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(600)']"
DEAF = "[sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)']"


def run(body, **options):
    command = [sys.executable, "-c", RUN.format(body=body)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)


def is_gone(pid, seconds=30.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("child", [SLEEPER, DEAF])
def test_orphan_in_a_session_of_its_own_is_found_and_ended(child):
    # the middle process starts the sleeper in a new session, says its pid, and is gone
    middle = (
        f"import subprocess, sys; print(subprocess.Popen({child}, start_new_session=True).pid, flush=True); "
        "import time; time.sleep(0.5)"
    )
    ran = run(
        "processes.adopt_orphans()\n"
        f"subprocess.run([sys.executable, '-c', {middle!r}])\n"
        "print(len(processes.end_descendants(0.5)), len(processes.descendants()), flush=True)"
    )
    said = ran.communicate(timeout=60)[0].split()
    assert said[1:] == ["1", "0"]
    assert is_gone(int(said[0]))


def test_process_that_is_apart_is_left_to_whoever_started_it():
    ran = run(
        f"child = subprocess.Popen({SLEEPER})\nprocesses.APART.add(child.pid)\n"
        "print(len(processes.end_descendants(0.5)), child.poll(), flush=True)\nchild.kill()"
    )
    assert ran.communicate(timeout=60)[0].split() == ["0", "None"]


def test_tied_child_gets_sigterm_when_its_parent_is_killed():
    parent = run(
        f"child = subprocess.Popen({SLEEPER}, preexec_fn=processes.tied(), start_new_session=True)\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert is_gone(pid)


def test_stop_is_noted_instead_of_died_of_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with stop_request() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop and stop.signal is signal.SIGTERM, "the first one is the reason"
    assert signal.getsignal(signal.SIGTERM) is before


def test_hang_up_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_request() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)
