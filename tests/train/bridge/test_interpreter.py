"""Which Python runs Megatron-Bridge: made once, of version 3.12, also pyenv's; and said where there is none."""

import re

import pytest
from packaging.requirements import Requirement

from tests.support.setups import Checkout
from train import launch
from train.bridge import interpreter as bridge_python
from train.job.job import Job
from utils.settings.config import ROOT, load


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path, "bridge")


def test_environment_is_made_once_and_its_python_is_all_of_stdout(checkout):
    checkout.add_python("python3", "3.12.7")
    first = checkout.run()
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{checkout.root}/.venv-bridge/bin/python\n"
    torch, packages = checkout.installs()
    assert torch.endswith("torch numpy")
    assert packages.endswith(f"--no-deps -r {checkout.root}/bridge-requirements.txt")
    again = checkout.run()
    assert (again.stdout, again.stderr, checkout.installs()) == (first.stdout, "", [])


def test_changed_requirements_and_an_interrupted_setup_are_made_anew(checkout):
    checkout.add_python("python3", "3.12.7")
    assert checkout.run(PIP_FAILS_ON="bridge-requirements.txt").returncode == 1
    assert checkout.run().returncode == 0 and len(checkout.installs()) == 2
    with (checkout.root / "bridge-requirements.txt").open("a") as file:
        file.write("another==1.0\n")
    assert checkout.run().returncode == 0 and len(checkout.installs()) == 2


@pytest.mark.parametrize("version", ["3.11.7", "3.13.0"])
def test_another_python_is_refused_and_named_in_one_line(checkout, version):
    checkout.add_python("python3", version)
    done = checkout.run()
    assert (done.returncode, done.stdout, checkout.installs()) == (1, "", [])
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: bridge: got Python {version} on PATH, wanted Python 3.12")


def test_python_312_is_found_among_the_versions_of_pyenv_behind_a_shim_that_fails(checkout):
    checkout.add_python("python3", "3.11.7")
    shim = checkout.programs / "python3.12"
    shim.write_text("#!/usr/bin/env bash\nexit 127\n")
    shim.chmod(0o755)
    assert checkout.run().returncode == 1
    own = checkout.add_python(checkout.pyenv / "versions" / "3.12.1" / "bin" / "python3.12", "3.12.1")
    done = checkout.run()
    assert done.returncode == 0 and str(own) in done.stderr


def test_on_nvidia_it_is_the_containers_own_and_nothing_is_installed(checkout):
    checkout.add_python("python3", "3.12.3")
    own = checkout.add_python("python", "3.12.3", has_framework=True)
    done = checkout.run("nvd")
    assert (done.returncode, done.stdout, checkout.installs()) == (0, f"{own}\n", [])
    own.unlink()
    outside = checkout.run("nvd")
    assert outside.returncode == 1 and "nvcr.io/nvidia/nemo:26.08" in outside.stderr


@pytest.mark.parametrize("where", [{"platform": "nvd"}, {"TPRIMAT_IN_CONTAINER": "1"}, {}])
def test_a_bridge_that_lacks_what_the_trainer_imports_is_refused_in_one_line(checkout, where):
    """nemo:26.02 to 26.06: without megatron.bridge.data.base; the same where bridge-requirements.txt is too short."""
    (checkout.root / "train").mkdir()
    python = checkout.add_python("python3", "3.12.3", has_framework=True)
    if not where:
        python = checkout.root / ".venv-bridge" / "bin" / "python"
    done = checkout.run(**where, LACKS="megatron.bridge.data.base")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"error: bridge: got megatron-bridge 0.3.1 of {python}, which lacks megatron.bridge.data.base; wanted 0.6.0 or "
        "later with all that it imports: nvcr.io/nvidia/nemo:26.08, or leave bridge out of FRAMEWORK"
    )
    complete = checkout.run(**where)
    assert (complete.returncode, complete.stdout) == (0, f"{python}\n")


def test_on_amd_it_is_refused(checkout):
    assert checkout.run("amd").returncode == 2


def test_every_requirement_is_pinned_and_bridge_has_the_megatron_core_of_its_own():
    lines = (ROOT / "bridge-requirements.txt").read_text(encoding="utf8").splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in asked:
        assert re.fullmatch(r"==\d+(\.\d+)*", str(requirement.specifier)), str(requirement)
    versions = {requirement.name: str(requirement.specifier) for requirement in asked}
    assert len(versions) == len(asked)
    assert (versions["megatron-bridge"], versions["megatron-core"]) == ("==0.6.2", "==0.19.2")


def test_ranks_are_started_by_the_python_of_bridge(monkeypatch):
    monkeypatch.setattr(bridge_python, "interpreter", lambda platform: "/python/of/bridge")
    config = load("cpu", arguments=["FRAMEWORK=bridge", "DATASET=synth"], environ={})
    command = launch._command(Job(config, "bridge", "llama"), [])
    assert command[0] == "/python/of/bridge" and "train.train_bridge" in command
