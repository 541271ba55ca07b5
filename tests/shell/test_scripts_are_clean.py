"""Rules for every shell script of ours: a header in one form, which is its --help, strict mode, the executable bit."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT

LIBRARIES = sorted(ROOT.glob("shell/lib/*.sh"))
SHORT = {
    **{name: f'run_{name}.sh" --here ' for name in ("data", "purge", "sweep", "train", "wrap")},
    **{name: f'inside/read.sh" {name} ' for name in ("extract", "frame", "gpu", "history", "trace", "validate")},
    "compare": '../evaluate/compare.sh" ',
}
"""Commands of two lines, and what each starts."""
COMMANDS = sorted({*ROOT.glob("shell/*.sh")} - {ROOT / "shell" / f"{name}.sh" for name in SHORT})
"""The other scripts that a person calls."""
JOBS = sorted(ROOT.glob("train/*.sh"))
SCRIPTS = [*LIBRARIES, *COMMANDS, *sorted(ROOT.glob("shell/inside/*.sh")), ROOT / ".ci" / "run"]
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))


def header(script: Path) -> list[str]:
    """Return the help: the comment at the top, or the docstring of the module that it names as far as the example."""
    lines = script.read_text(encoding="utf8").splitlines()[1:]
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    module = lines[0].rpartition(" Help: ")[2] if " Help: " in lines[0] else ""
    if not module:
        return [line.removeprefix("#").removeprefix(" ") for line in lines[:end]]
    docstring = ast.get_docstring(ast.parse((ROOT / module).read_text(encoding="utf8"))) or ""
    return docstring[: docstring.index("\n", docstring.index("\nExample:") + 1)].splitlines()


@each_script
def test_it_runs_with_the_bash_of_the_path_stops_at_the_first_error_and_parses(script: Path) -> None:
    text = script.read_text(encoding="utf8")
    lines = text.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert script in LIBRARIES or "\nset -Eeuo pipefail\n" in text or '/lib/environment.sh" || exit\n' in text
    assert os.access(script, os.X_OK) == (script not in LIBRARIES), "a library is sourced"
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@each_script
def test_its_header_says_how_it_is_used(script: Path) -> None:
    titles = " ".join(line.split(":")[0].lower() for line in header(script) if ":" in line)
    for title in ("usage", "reads", "writes", "exits"):
        assert re.search(rf"\b{title}\b", titles), f"{script} has no '{title}:' in its header"


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize(
    "script",
    COMMANDS,
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_help_is_the_header_and_needs_no_environment(script: Path, flag: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run([script, flag], cwd="/", env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == header(script)


def test_a_script_of_a_job_and_a_short_name_only_hand_on() -> None:
    for script in JOBS:
        names = script.stem.removeprefix("train_").replace("_", " ")
        shebang, line = script.read_text(encoding="utf8").splitlines()
        place = 'exec "$(dirname -- "$(readlink -f -- "$0")")/../shell/inside/job.sh"'
        assert (shebang, line) == ("#!/usr/bin/env bash", f'{place} {names} "$@"') and os.access(script, os.X_OK)
    for name, started in SHORT.items():
        script = ROOT / "shell" / f"{name}.sh"
        shebang, line = script.read_text(encoding="utf8").splitlines()
        start = f'exec "$(dirname -- "$(readlink -f -- "$0")")/{started}'
        assert shebang == "#!/usr/bin/env bash" and line.startswith(start) and line.endswith('"$@"')
        assert os.access(script, os.X_OK)
    done = subprocess.run([JOBS[0], "--help"], cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Usage:  train/train_PLATFORM_FRAMEWORK_MODEL.sh [--run N]" in done.stdout


READING = [ROOT / "shell" / f"{name}.sh" for name, started in SHORT.items() if "read.sh" in started]


@pytest.mark.parametrize("script", [*COMMANDS, *READING], ids=lambda path: path.name)
def test_the_help_of_commands_has_one_form(script: Path) -> None:
    """One sentence on what the command is for; then Usage, Reads, Writes, Exits and Example, in columns."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run([script, "--help"], cwd="/", env=environment, capture_output=True, text=True, timeout=60)
    first, *lines = done.stdout.partition("\n\npositional arguments:")[0].partition("\n\noptions:")[0].splitlines()
    assert first.endswith(".") and len(first) <= 120
    block = lines[next(number for number, line in enumerate(lines) if line.startswith("Usage:")) :]
    labels = [line[:9].strip() for line in block if line[:9].strip()]
    assert labels == ["Usage:", "Reads:", "Writes:", "Exits:", "Example:"]
    assert all(line[8] == " " and line[9] != " " for line in block if line[:9].strip())
    assert f"./shell/{script.name}" in block[0]
    assert block[-1].startswith(f"Example: ./shell/{script.name}")
