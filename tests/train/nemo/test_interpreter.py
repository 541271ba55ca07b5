"""Which Python runs NeMo: made once, of the right version, apart from the suite's own; and said where there is none."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from train import launch
from train.job.job import Job
from train.nemo import interpreter as nemo_python
from utils.errors import ConfigError
from utils.settings.config import ROOT, load

TOOLS = (
    "bash",
    "env",
    "dirname",
    "readlink",
    "cat",
    "sha256sum",
    "mkdir",
    "rm",
    "cp",
    "sed",
    "flock",
    "sleep",
    "touch",
)
# Plays a Python of the machine, the one of .venv-nemo and its pip; writes every call into calls.txt.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  -V) echo "Python {version}" ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip"*) [[ $* != *"${{PIP_FAILS_ON:-nothing}}"* ]] ;;
  *"torch_source.py answers"*) exit 1 ;;
  *find_spec*) exit {nemo_exit} ;;
esac
"""


class Checkout:
    """What setup_nemo.sh reads, below a folder with a space in its name, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.programs = folder / "programs"
        self.calls_file = folder / "calls.txt"
        self.programs.mkdir()
        for name in ("inside/setup_nemo.sh", "lib/environment.sh", "lib/install.sh", "platform.sh"):
            (self.root / "shell" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "shell" / name, self.root / "shell" / name)
        shutil.copy(ROOT / "nemo-requirements.txt", self.root)
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))

    def add_python(self, name: str, version: str, *, has_nemo: bool = False) -> Path:
        path = self.programs / name
        path.write_text(STAND_IN.format(version=version, nemo_exit=0 if has_nemo else 1), encoding="utf8")
        path.chmod(0o755)
        return path

    def run(self, platform: str = "cpu", **changes: str) -> subprocess.CompletedProcess[str]:
        """Run it, forgetting the calls of earlier runs."""
        self.calls_file.unlink(missing_ok=True)
        environment = {"PATH": str(self.programs), "PLATFORM": platform, "CALLS": str(self.calls_file), **changes}
        script = str(self.root / "shell" / "inside" / "setup_nemo.sh")
        return subprocess.run([script], env=environment, capture_output=True, text=True, timeout=60)

    def installs(self) -> list[str]:
        lines = self.calls_file.read_text(encoding="utf8").splitlines() if self.calls_file.exists() else []
        return [line for line in lines if "-m pip" in line]


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


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
    own = checkout.add_python("python", "3.12.3", has_nemo=True)
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
