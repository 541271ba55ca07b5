"""What every shell script of ours has: a header that says what it does, the strict mode, the right to run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted(ROOT.glob("shell/**/*.sh")), *sorted(ROOT.glob("train/*.sh")), ROOT / ".ci" / "run"]
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))


def header(script: Path) -> list[str]:
    """Return the comment lines at the top, without the line that names the interpreter."""
    lines = script.read_text(encoding="utf8").splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return lines[:end]


@each_script
def test_it_runs_with_the_bash_of_the_path(script: Path) -> None:
    assert script.read_text(encoding="utf8").startswith("#!/usr/bin/env bash\n")


@each_script
def test_its_header_says_how_it_is_used(script: Path) -> None:
    titles = " ".join(line.split(":")[0].lower() for line in header(script) if ":" in line)
    for title in ("usage", "reads", "writes", "exits"):
        assert re.search(rf"\b{title}\b", titles), f"{script} has no '{title}:' in its header"


@each_script
def test_it_stops_at_the_first_error(script: Path) -> None:
    lines = script.read_text(encoding="utf8").splitlines()
    first_command = next(line for line in lines if line and not line.startswith("#"))
    assert first_command == "set -Eeuo pipefail"


@each_script
def test_it_may_be_executed(script: Path) -> None:
    assert os.access(script, os.X_OK)


@each_script
def test_it_parses(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["setup.sh", "test.sh"])
def test_help_is_the_header(name: str) -> None:
    script = ROOT / "shell" / name
    done = subprocess.run([str(script), "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [line.removeprefix("# ") for line in header(script)]
