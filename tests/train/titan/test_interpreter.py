"""The Python that runs torchtitan: made once, beside the suite's own, with its PyTorch; one line where it cannot be."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from train import launch
from train.job.job import Job
from train.titan import interpreter as titan_python
from utils.settings.config import ROOT, load

TOOLS = ("bash", "env", "dirname", "readlink", "cat", "sha256sum", "mkdir", "rm", "cp", "grep", "sed", "flock")
# Plays the Python of .venv, that of .venv-titan and its pip; writes every call into calls.txt.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  -V) echo "Python 3.11.7" ;;
  "-m venv"*) mkdir -p "${@: -1}/bin" "${@: -1}/packages" && cp "$0" "${@: -1}/bin/python" ;;
  "-m pip"*) [[ -z ${PIP_FAILS:-} ]] ;;
  *purelib*) dir=${0%/bin/python}; echo "$dir/packages" ;;
  *"import train.train_titan") [[ -z ${LACKS:-} ]] || { echo "Error: No module named '$LACKS'" >&2; exit 1; } ;;
  *m.version*torch) echo 2.7.0 ;;
esac
"""


class Checkout:
    """The files that setup_titan.sh reads, below a folder with a space in its name, and a PATH of tools."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.programs = folder / "programs"
        self.calls_file = folder / "calls.txt"
        self.programs.mkdir()
        for name in ("inside/setup_titan.sh", "lib/environment.sh", "lib/install.sh"):
            (self.root / "shell" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "shell" / name, self.root / "shell" / name)
        shutil.copy(ROOT / "titan-requirements.txt", self.root)
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))

    def add_venv(self, *, sees_system: bool = False) -> None:
        python = self.root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(STAND_IN, encoding="utf8")
        python.chmod(0o755)
        said = str(sees_system).lower()
        (self.root / ".venv" / "pyvenv.cfg").write_text(f"include-system-site-packages = {said}\n")

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run it, forgetting the calls of earlier runs."""
        self.calls_file.unlink(missing_ok=True)
        environment = {"PATH": str(self.programs), "CALLS": str(self.calls_file), **changes}
        script = str(self.root / "shell" / "inside" / "setup_titan.sh")
        return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, timeout=60)

    def calls(self, word: str) -> list[str]:
        lines = self.calls_file.read_text(encoding="utf8").splitlines() if self.calls_file.exists() else []
        return [line for line in lines if word in line]


@pytest.fixture
def checkout(tmp_path):
    made = Checkout(tmp_path)
    made.add_venv()
    return made


def test_environment_is_made_once_and_its_python_is_all_of_stdout(checkout):
    first = checkout.run()
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"{checkout.root}/.venv-titan/bin/python\n"
    (install,) = checkout.calls("-m pip")
    assert "--no-deps" in install and install.endswith(f"-r {checkout.root}/titan-requirements.txt")
    assert "--system-site-packages" not in checkout.calls("-m venv")[0]
    again = checkout.run()
    assert (again.stdout, again.stderr, checkout.calls("-m pip")) == (first.stdout, "", [])


def test_it_sees_the_packages_of_the_suite_with_those_that_the_suite_sees(tmp_path):
    image = Checkout(tmp_path)
    image.add_venv(sees_system=True)
    assert image.run().returncode == 0
    assert "--system-site-packages" in image.calls("-m venv")[0]
    line = (image.root / ".venv-titan" / "packages" / "suite.pth").read_text()
    assert line == f'import site; site.addsitedir("{image.root}/.venv/packages")\n'


def test_changed_requirements_and_an_interrupted_setup_are_made_anew(checkout):
    assert checkout.run(PIP_FAILS="1").returncode == 1
    assert checkout.run().returncode == 0 and len(checkout.calls("-m pip")) == 1
    with (checkout.root / "titan-requirements.txt").open("a") as file:
        file.write("another==1.0\n")
    assert checkout.run().returncode == 0 and len(checkout.calls("-m pip")) == 1


def test_a_pytorch_that_the_trainer_cannot_be_imported_with_is_named_in_one_line(checkout):
    (checkout.root / "train").mkdir()
    lacking = {"LACKS": "torch.nn.attention.varlen"}
    done = checkout.run(**lacking)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(
        f"error: titan: got torch 2.7.0 of {checkout.root}/.venv-titan/bin/python, which lacks {lacking['LACKS']}; "
    )
    assert checkout.run().returncode == 0, "it was not taken for complete"
    assert checkout.run(TPRIMAT_IN_CONTAINER="1", **lacking).returncode == 1, "an image is made before it has a trainer"


def test_without_the_suites_environment_and_in_an_old_image_one_line_tells_what_to_run(tmp_path, checkout):
    old = checkout.run(TPRIMAT_IN_CONTAINER="1")
    assert (old.returncode, checkout.calls("-m pip")) == (1, [])
    assert "run ./shell/build.sh" in old.stderr
    (tmp_path / "another").mkdir()
    bare = Checkout(tmp_path / "another").run()
    assert bare.returncode == 1 and "run ./shell/setup.sh" in bare.stderr
    wrong = checkout.run("PLATFORM=cpu")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


def test_every_requirement_is_pinned_and_none_is_torch():
    lines = (ROOT / "titan-requirements.txt").read_text(encoding="utf8").splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    for requirement in asked:
        assert re.fullmatch(r"==\d+(\.\d+)+", str(requirement.specifier)), str(requirement)
    versions = {requirement.name: str(requirement.specifier) for requirement in asked}
    assert versions["torchtitan"] == "==0.2.2"
    assert not versions.keys() & {"torch", "triton", "numpy", "nvidia-nccl-cu12"}


@pytest.mark.parametrize("platform", ["nvd", "amd", "cpu"])
def test_ranks_are_started_by_the_python_of_torchtitan_on_every_platform(monkeypatch, platform):
    monkeypatch.setattr(titan_python, "interpreter", lambda platform: f"/python/of/titan/{platform}")
    settings = ["FRAMEWORK=titan", "DATASET=synth"]
    config = load(platform, 8, arguments=settings, environ={})
    command = launch._command(Job(config, "titan", "llama"), settings)
    assert command[0] == f"/python/of/titan/{platform}" and "train.train_titan" in command
    assert command[command.index("--nproc-per-node") + 1] == str(config.num_gpus)
    assert sys.executable not in command
