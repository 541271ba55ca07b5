"""Before the packages are there: status.json tells the setup, bad input ends it at once, a plan needs no package."""

import json
import os
import subprocess
import sys

import pytest
from checkout import ROOT

from train import matrix


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """A stand-in for shell/setup.sh: a function that sets what it does; it notes that it ran."""
    script = tmp_path / "setup.sh"

    def does(body):
        script.write_text(f"#!/usr/bin/env bash\ntouch {tmp_path}/ran\n{body}\n")
        script.chmod(0o755)

    does("exit 0")
    monkeypatch.setattr(matrix, "SETUP", script)
    monkeypatch.setattr(matrix.processes, "end_with_parent", lambda *arguments: None)
    return does


def run(tmp_path, *settings):
    where = [f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}", "MODEL=llama", "FRAMEWORK=mega"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["matrix", "--set-up", "--platform", "cpu", *where, *settings])
        return matrix.main()


def status(tmp_path):
    return json.loads((tmp_path / "output" / "status.json").read_text())


def test_the_setup_is_a_phase_while_it_runs(setup, tmp_path):
    setup(f"cp {tmp_path}/output/status.json {tmp_path}/meanwhile.json")
    assert run(tmp_path) == 0
    meanwhile = json.loads((tmp_path / "meanwhile.json").read_text())
    assert (meanwhile["state"], meanwhile["phase"]) == ("running", "setup")
    assert [job["framework"] for job in meanwhile["jobs"]] == ["mega"] * 3


@pytest.mark.parametrize(
    ("body", "code", "state", "said"),
    [
        ("exit 1", 1, "failed", ""),
        (f"kill -TERM {os.getpid()}; sleep 60", 128 + 15, "interrupted", "run the same command again"),
    ],
    ids=["failed", "interrupted"],
)
def test_a_setup_that_does_not_end_well_is_in_the_status(setup, tmp_path, capsys, body, code, state, said):
    setup(body)
    assert run(tmp_path) == code
    assert (status(tmp_path)["state"], status(tmp_path)["phase"]) == (state, "setup")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["MODEL=lama", "GBS=7", "DATASET=/no/such/file.jsonl"])
def test_bad_input_ends_it_before_anything_is_installed(setup, tmp_path, setting, capsys):
    assert run(tmp_path, setting) == 2
    assert setting.partition("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and not (tmp_path / "output").exists()


def test_a_file_of_the_user_ends_it_before_anything_is_installed(setup, tmp_path, capsys):
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "status.json").write_text("mine")
    assert run(tmp_path) == 2
    assert "status.json: exists" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


WITHOUT_PACKAGES = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("platform", ["cpu", "nvd", "amd"])
def test_a_plan_needs_the_standard_library_only(tmp_path, platform):
    """-S leaves out site-packages, -I the environment: no numpy, torch or rich can be imported."""
    where = [f"OUTPUT_DIR={tmp_path}", f"DATA_DIR={tmp_path}", "DATASET=synth", "MODEL=llama", "FRAMEWORK=mega,hf"]
    gpus = [] if platform == "cpu" else ["GPUS_PER_NODE=8"]
    asked = ["train.matrix", "--platform", platform, "--dry-run", *where, *gpus]
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", WITHOUT_PACKAGES, str(ROOT), *asked]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert f"train/train_{platform}_hf_llama.sh --run 3" in ran.stdout
    assert not list(tmp_path.iterdir())
