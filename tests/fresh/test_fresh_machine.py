"""On a machine where nothing is installed, the users' command makes the environment of each framework and trains.

Every environment is made from nothing, in a copy of the checkout, and is removed after its training; tests/shell/
test_walkthrough.py makes .venv-evaluate. All take minutes and several GB, so FRESH_TESTS=1 asks for them.
"""

import os
import shutil
import subprocess

import pytest

from tests.support import fresh_machine, real_primus
from utils.results import store

NEEDED_GB = 15
FREE_GB = shutil.disk_usage("/tmp").free / 1e9
SHORT = ("MODEL=llama", "MODEL_SIZE=tiny", "TRAIN_ITERS=2", "WARMUP_ITERS=1", "RUNS=1", "CPU_RANKS=1")
BATCH = ("GBS=4", "MBS=2", "SL=64")
PYTHONS = {"bridge": "3.12", "nemo": "3.11"}
"""Version of Python that a framework requires (setup_bridge.sh, setup_nemo.sh)."""

pytestmark = [
    pytest.mark.skipif(os.environ.get("FRESH_TESTS") != "1", reason="installs several GB; FRESH_TESTS=1 asks for it"),
    pytest.mark.skipif(FREE_GB < NEEDED_GB, reason=f"{FREE_GB:.0f} GB free in /tmp, the environments need {NEEDED_GB}"),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    # Primus's launcher divides a path at its spaces
    folder = fresh_machine.copy_checkout(tmp_path_factory.mktemp("fresh") / "clone")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def primus(request, tmp_path):
    """Return the variables with which the framework under test finds Primus, none for another framework."""
    if request.getfixturevalue("frameworks") != "prim":
        return {}
    if reason := real_primus.why_not():
        pytest.skip(reason)
    return {"PRIMUS_PATH": str(real_primus.unpack("primus-fd1eeab", tmp_path))}


@pytest.mark.parametrize("frameworks", ["mega,hf", "titan", "prim", "bridge", "nemo"])
def test_the_users_command_makes_the_environment_of_a_framework_and_trains(frameworks, primus, clone, tmp_path):
    version = PYTHONS.get(frameworks)
    python = version and fresh_machine.python_of(version)
    if version and not python:
        pytest.skip(f"no Python {version} on PATH or in pyenv, which {frameworks} requires")
    environment = fresh_machine.environment(tmp_path / "home", *([python] if python else [])) | primus
    command = [clone / "shell" / "run_train.sh", "PLATFORM=cpu", f"FRAMEWORK={frameworks}", *SHORT, *BATCH]
    options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "timeout": 1800}
    try:
        done = subprocess.run(command, capture_output=True, text=True, **options)
    finally:
        for place in clone.glob(f".venv-{frameworks}"):
            shutil.rmtree(place)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for framework in frameworks.split(","):
        result = store.read(clone / "output" / f"train_cpu_{framework}_llama_run1.json")
        assert (result["status"], result["training_config"]["max_steps"]) == ("ok", 2)
