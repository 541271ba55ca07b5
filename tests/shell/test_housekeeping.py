"""Scripts that need nothing installed: wrap and purge, the job scripts, compare.sh with the folder of the settings."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from housekeeping import tree, write_data, write_output

from tests.support.setups import ROOT, add_program, copy_to


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the checkout without .venv, in a folder whose name contains a space."""
    rooms = ("shell", "utils", "evaluate", "train")
    root = copy_to(tmp_path / "a checkout", *rooms, "config*.env", "*requirements.txt")
    write_output(root / "output")
    write_data(root / "output" / "data")
    return root


def run(script: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script as on a machine without a GPU, from outside the checkout."""
    environ = {"HOME": os.environ["HOME"], "PATH": os.environ["PATH"], "PLATFORM": "cpu", **environ}
    command = [str(script), *arguments]
    return subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True, timeout=60)


def test_the_platform_accepts_settings_that_do_not_change_it(checkout):
    script = checkout / "shell" / "platform.sh"
    assert run(script, "MODEL=llama", "OUTPUT_DIR=x").stdout == run(script).stdout == "cpu\n"
    assert run(script, "nonsense").returncode == 2


def test_wrap_and_purge_work_without_the_suites_environment(checkout):
    """Neither creates it. On a machine without a GPU, DATA_DIR is inside OUTPUT_DIR."""
    wrapped = run(checkout / "shell" / "wrap.sh")
    assert wrapped.returncode == 0
    assert re.fullmatch(r".+: removed \.output\.zip\.\w+\.tmp, left by a run that was killed\n", wrapped.stderr)
    assert wrapped.stdout.startswith(f"{checkout}/output/output.zip: 23 files, ")
    before = tree(checkout / "output")
    dry = run(checkout / "shell" / "purge.sh", "--dry-run", "--with-data")
    assert dry.returncode == 0 and tree(checkout / "output") == before
    purged = run(checkout / "shell" / "purge.sh")
    assert (purged.returncode, purged.stderr) == (0, "")
    assert sorted(path.name for path in (checkout / "output").iterdir()) == [".tprimat", "data"]
    assert run(checkout / "shell" / "purge.sh", "--with-data").returncode == 0
    assert not (checkout / "output").exists() and not (checkout / ".venv").exists()


def test_a_python_of_the_suite_that_does_not_run_is_not_used(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(checkout / "missing" / "python3")
    assert run(checkout / "shell" / "purge.sh").returncode == 0
    assert (checkout / ".venv" / "bin" / "python").is_symlink()


@pytest.mark.parametrize("arguments", [["OUTPUT_DIR=output", "--dry-run"], ["--dry-run", "PLATFORM=nvd"]])
def test_settings_and_options_come_in_any_order(arguments, checkout):
    before = tree(checkout / "output")
    ran = run(checkout / "shell" / "purge.sh", *arguments, "DATA_DIR=output/data")
    assert ran.returncode == 0 and "would remove" in ran.stdout
    assert tree(checkout / "output") == before


def stand_in(path: Path, first: str = "true") -> None:
    """Replace a program by one that prints its arguments, one per line, unless `first` does something else."""
    add_program(path, f'#!/usr/bin/env bash\n{first} && printf "%s\\n" "$PLATFORM" "$@"\n')


@pytest.mark.parametrize("script", sorted(ROOT.glob("train/*.sh")), ids=lambda path: path.name)
def test_a_job_script_starts_the_job_of_its_name(script, checkout):
    stand_in(checkout / ".venv" / "bin" / "python")
    stand_in(checkout / "shell" / "setup.sh")
    _, platform, framework, model = script.stem.split("_")
    ran = run(checkout / "train" / script.name, "--run", "3", "MBS=2")
    job = ["-m", "train.launch", "--platform", platform, "--framework", framework, "--model", model]
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-len(job) - 4 :] == [platform, *job, "--run", "3", "MBS=2"]


def test_compare_takes_the_folder_of_the_settings_where_none_is_named(checkout):
    stand_in(checkout / ".venv" / "bin" / "python", '[[ $2 == utils.configure ]] && echo "of ${*: -1}" && exit; true')
    script = checkout / "evaluate" / "compare.sh"
    assert run(script, "LABEL=tp2").stdout.splitlines() == ["cpu", "-m", "evaluate.compare", "of LABEL=tp2"]
    named = run(script, "a", "b", "--output", "c").stdout.splitlines()
    assert named == ["cpu", "-m", "evaluate.compare", "a", "b", "--output", "c"]
