"""Packages of other people named `utils`, `data`, `train` or `evaluate` do not replace ours."""

import os
import subprocess
import sys
import sysconfig

import pytest
from checkout import ROOT
from sides import write

from example import example_result

ROOMS = ("utils", "data", "train", "evaluate")


@pytest.fixture
def foreign(tmp_path):
    """A folder of regular packages with our names; Hugging Face's `evaluate` and many images' `utils` are such."""
    for name in ROOMS:
        (tmp_path / "foreign" / name).mkdir(parents=True)
        (tmp_path / "foreign" / name / "__init__.py").write_text(f"raise SystemExit('the foreign package {name}')\n")
    return tmp_path / "foreign"


@pytest.fixture(params=["PYTHONPATH", "environment"])
def python(request, foreign, tmp_path):
    """Return a Python with the foreign packages on its path, and its environment."""
    if request.param == "PYTHONPATH":
        return sys.executable, {"PYTHONPATH": str(foreign)}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site_packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site_packages / "foreign.pth").write_text(f"{foreign}\n{sysconfig.get_path('purelib')}\n")
    return str(tmp_path / "venv" / "bin" / "python"), {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("utils.configure", "--platform", "cpu", "--get", "results_dir"),
        ("evaluate.validate", "{results}"),
        ("evaluate.compare", "{results}", "--format", "md", "--output", "{results}/compared"),
        ("data.verify", "--help"),
        ("data.encode", "--help"),
        ("train.matrix", "--help"),
        ("train.launch", "--help"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_run_our_own_code(python, tmp_path, arguments):
    write(tmp_path / "results", [example_result(framework=name, run=run) for run in (1, 2) for name in ("mega", "hf")])
    executable, environment = python
    named = [argument.format(results=tmp_path / "results") for argument in arguments]
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run(
        [executable, "-m", *named], cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode in (0, 3), ran.stderr[-1000:]
    assert "foreign" not in ran.stdout + ran.stderr


def test_the_foreign_packages_would_be_imported_elsewhere(python, tmp_path):
    executable, environment = python
    ran = subprocess.run(
        [executable, "-c", "import evaluate"],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert "the foreign package evaluate" in ran.stderr
