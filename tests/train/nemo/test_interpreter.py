"""Which Python runs NeMo: made once, of the right version, apart from the suite's own; and said where there is none."""

import re
import sys

import pytest
from packaging.requirements import Requirement

from tests.support.setups import Checkout
from train import launch
from train.job.job import Job
from train.nemo import interpreter as nemo_python
from utils.errors import ConfigError
from utils.settings.config import ROOT, load


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path, "nemo")


def test_environment_is_made_once_and_its_python_is_all_of_stdout(checkout):
    checkout.add_python("python3", "3.11.7")
    first = checkout.run()
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{checkout.root}/.venv-nemo/bin/python\n"
    torch, packages = checkout.installs()
    assert torch.endswith("torch numpy") and packages.endswith(f"-r {checkout.root}/nemo-requirements.txt")
    again = checkout.run()
    assert (again.stdout, again.stderr, checkout.installs()) == (first.stdout, "", [])


def test_changed_requirements_and_an_interrupted_setup_are_made_anew(checkout):
    checkout.add_python("python3", "3.11.7")
    assert checkout.run(PIP_FAILS_ON="nemo-requirements.txt").returncode == 1
    assert checkout.run().returncode == 0 and len(checkout.installs()) == 2
    with (checkout.root / "nemo-requirements.txt").open("a") as file:
        file.write("another==1.0\n")
    assert checkout.run().returncode == 0 and len(checkout.installs()) == 2


@pytest.mark.parametrize("version", ["3.10.14", "3.12.1", "3.13.0"])
def test_another_python_is_refused_and_named(checkout, version):
    checkout.add_python("python3", version)
    done = checkout.run()
    assert (done.returncode, done.stdout, checkout.installs()) == (1, "", [])
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: nemo: got Python {version} on PATH, wanted Python 3.11")


def test_python_311_is_taken_where_python3_is_another(checkout):
    checkout.add_python("python3", "3.13.0")
    checkout.add_python("python3.11", "3.11.9")
    assert checkout.run().returncode == 0


def test_on_nvidia_it_is_the_containers_own_and_nothing_is_installed(checkout):
    checkout.add_python("python3", "3.12.3")
    own = checkout.add_python("python", "3.12.3", has_framework=True)
    done = checkout.run("nvd")
    assert (done.returncode, done.stdout, checkout.installs()) == (0, f"{own}\n", [])
    own.unlink()
    outside = checkout.run("nvd")
    assert outside.returncode == 1 and "nvcr.io/nvidia/nemo:26.02" in outside.stderr


def test_every_requirement_is_pinned_and_none_is_of_the_suites_own_megatron():
    lines = (ROOT / "nemo-requirements.txt").read_text(encoding="utf8").splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in asked:
        assert re.fullmatch(r"==\d+(\.\d+)+", str(requirement.specifier)), str(requirement)
    versions = {requirement.name: str(requirement.specifier) for requirement in asked}
    assert len(versions) == len(asked)
    assert (versions["nemo_toolkit"], versions["megatron-core"]) == ("==2.3.3", "==0.12.3")


def script(folder, text):
    path = folder / "setup.sh"
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


def test_reason_of_the_setup_is_the_error_and_the_rest_goes_to_stderr(tmp_path, capfd):
    failing = script(tmp_path, "echo '[1/3] making' >&2; echo 'error: nemo: no network' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"^nemo: no network$"):
        nemo_python.interpreter("cpu", failing)
    assert capfd.readouterr().err == "[1/3] making\n"
    assert nemo_python.interpreter("nvd", script(tmp_path, 'echo "/python/of/$PLATFORM"')) == "/python/of/nvd"


@pytest.mark.parametrize(("framework", "python"), [("nemo", "/python/of/nemo"), ("hf", sys.executable)])
def test_ranks_are_started_by_the_python_of_their_framework(monkeypatch, framework, python):
    monkeypatch.setattr(nemo_python, "interpreter", lambda platform: "/python/of/nemo")
    config = load("cpu", arguments=[f"FRAMEWORK={framework}", "DATASET=synth"], environ={})
    command = launch._command(Job(config, framework, "llama"), [])
    assert command[0] == python and f"train.train_{framework}" in command
