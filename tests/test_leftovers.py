"""A test run that leaves something outside its temporary folders names it at its end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

CLEAN = """
import os, pathlib, subprocess, tempfile

def test_clean(tmp_path):
    (tmp_path / "file").touch()
    tempfile.TemporaryDirectory().cleanup()
    subprocess.run(["true"], check=True)
"""
LEAVING = """
def test_file():
    tempfile.mkdtemp(prefix="left_")

def test_shared_memory():
    pathlib.Path("/dev/shm/torch_1_leftovers").touch()

def test_checkout():
    pathlib.Path(os.environ["CHECKOUT"], "output", "left.txt").touch()

def test_process():
    print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, file=open("process", "w"))
"""


def run(folder, content, *arguments):
    """Run pytest on one file in a folder of its own, with the check and without the settings of this checkout."""
    (folder / "test_it.py").write_text(content)
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.leftovers", *arguments, "test_it.py"]
    path = f"{ROOT}:{ROOT}/tests/support"
    environment = {**os.environ, "PYTHONPATH": path, "CHECKOUT": str(ROOT), "TMPDIR": str(folder)}
    environment.pop("PYTEST_DEBUG_TEMPROOT", None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def leaving(tmp_path):
    """A folder for tests that leave something, which is removed afterwards."""
    yield tmp_path
    for path in (Path("/dev/shm/torch_1_leftovers"), ROOT / "output" / "left.txt"):
        path.unlink(missing_ok=True)
    os.kill(int((tmp_path / "process").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]])
def test_run_that_leaves_something_names_it(leaving, arguments):
    ran = run(leaving, CLEAN + LEAVING, *arguments)
    assert ran.returncode == 0 and "5 passed" in ran.stdout, ran.stdout
    _, said = ran.stdout.split(" left behind by the tests ")
    process = (leaving / "process").read_text().strip()
    assert f"process: {process} sleep 600\n" in said
    assert f"temporary file: {leaving}/tprimat-tests-" in said and "/left_" in said
    assert {"/dev/shm/torch_1_leftovers", f"{ROOT}/output/left.txt"} <= set(said.splitlines())
    assert not list(leaving.glob("tprimat-tests-*")), "the temporary folder of the run is removed"


def test_run_that_leaves_nothing_names_nothing(tmp_path):
    ran = run(tmp_path, CLEAN)
    assert ran.returncode == 0 and "left behind" not in ran.stdout, ran.stdout
