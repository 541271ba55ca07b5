"""On a machine where nothing is installed, the users' command makes the environment of each framework and trains.

In a copy of the checkout, as a user with an empty home. The environments of Bridge and NeMo, 2 GB each, are those of
this checkout, which tests/train uses too, so that each is made once, here or there. All others are made from nothing.
"""

import functools
import json
import shutil
import subprocess
import sys

import pytest

from tests.support import bundles, checkout, real_primus
from tests.support.launching import results

pytestmark = pytest.mark.full("environments made from nothing, and a job in each, about 400 s")
SHORT = ("MODEL=llama", "MODEL_SIZE=tiny", "TRAIN_ITERS=2", "WARMUP_ITERS=1", "RUNS=1", "CPU_RANKS=1")
BATCH = ("GBS=4", "MBS=2", "SL=64")
PYTHONS = {"bridge": "3.12", "nemo": "3.11"}
"""Version of Python that a framework requires (shell/inside/setup_framework.sh)."""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    # Primus's launcher divides a path at its spaces
    folder = checkout.copy_checkout(tmp_path_factory.mktemp("fresh") / "clone")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("frameworks", ["mega,hf", "titan", "prim", "bridge", "nemo"])
def test_the_users_command_makes_the_environment_of_a_framework_and_trains(frameworks, clone, tmp_path):
    python, given = checkout.python_of(PYTHONS.get(frameworks, "3")), {}
    if python is None:
        pytest.skip(f"no Python {PYTHONS[frameworks]} on PATH or in pyenv, which {frameworks} requires")
    if frameworks == "prim":
        if reason := real_primus.why_not():
            pytest.skip(reason)
        given = {"PRIMUS_PATH": str(real_primus.unpack("primus-fd1eeab", tmp_path))}
    environment = checkout.environment_of_user(tmp_path / "home", python) | given
    if frameworks in PYTHONS:
        setup = checkout.ROOT / "shell" / "inside" / "setup_framework.sh"
        subprocess.run([setup, frameworks, "PLATFORM=cpu"], env=environment, stdout=subprocess.DEVNULL, check=True)
        (clone / f".venv-{frameworks}").symlink_to(checkout.ROOT / f".venv-{frameworks}")
    command = [clone / "shell" / "run_train.sh", "PLATFORM=cpu", f"FRAMEWORK={frameworks}", *SHORT, *BATCH]
    options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL, "timeout": 1800}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = {result["framework"]: result for result in results(clone / "output").values()}
    for framework in frameworks.split(","):
        assert (found[framework]["status"], found[framework]["training_config"]["max_steps"]) == ("ok", 2)


def test_the_wheel_alone_compares_archives_and_holds_no_torch(clone, tmp_path):
    """`uvx --from . tprimat compare a.zip b.zip` and `pipx run` do this: an environment that has the wheel only."""
    archives = []
    for platform, seconds in (("nvd", 1.0), ("amd", 0.9)):
        folder = bundles.written(tmp_path / platform, bundles.sides({platform: seconds}, runs=3))
        archives.append(bundles.pack(folder))
    run = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    python = tmp_path / "venv" / "bin" / "python"
    run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    run([python, "-m", "pip", "install", "--quiet", clone], check=True)
    assert run([python, "-c", "import torch"]).returncode == 1
    done = run([python.with_name("tprimat"), "compare", *archives, "--output", "out", "--format", "json"])
    assert done.returncode == 0, done.stdout + done.stderr
    (verdict,) = json.loads((tmp_path / "out" / "compare.json").read_text())["verdicts"]
    assert verdict["verdict"] == "faster" and verdict["ratio"] == pytest.approx(1 / 0.9, rel=0.01)
    for command in ("validate", "history", "trace"):
        assert run([python.with_name("tprimat"), command, "--help"]).stdout.startswith(("Check", "Show", "Divide"))
    assert run([python.with_name("tprimat"), "train"]).returncode == 2
