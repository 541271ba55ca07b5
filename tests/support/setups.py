"""A checkout with one setup script and a PATH of stand-ins, to see what it installs: nothing is downloaded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from checkout import ROOT

TOOLS = (
    *("bash", "env", "dirname", "readlink", "cat", "sha256sum", "mkdir", "rm", "cp", "grep", "sed", "paste", "flock"),
    *("sleep", "touch"),
)
# Plays a Python of the machine, the one of an environment and its pip; writes every call into calls.txt.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  -V) echo "Python {version}" ;;
  *ensurepip*) exit {no_venv} ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin" && rm -f "${{@: -1}}"/.[!.]* && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip"*) echo "Collecting a package"; sleep "${{PIP_SECONDS:-0}}"; [[ $* != *"${{PIP_FAILS_ON:-nothing}}"* ]] ;;
  *"torch_source.py machine"*) printf '%s' "${{FAKE_TORCH:-}}" ;;
  *"torch_source.py answers"*) exit "${{WHEELS_EXIT:-1}}" ;;
  *purelib*) dirname -- "$0" ;;
  *find_spec*) exit {no_framework} ;;
  *"import train.train_"* | *pretrain_gpt*)
    [[ -z ${{LACKS:-}} ]] || {{ echo "Error: No module named '$LACKS'" >&2; exit 1; }} ;;
  *m.version*) echo 0.3.1 ;;
esac
"""


def copy_to(root: Path, *patterns: str) -> Path:
    """Copy files and folders of this checkout that match a pattern to the same places below another root."""
    for path in [path for pattern in patterns for path in ROOT.glob(pattern)]:
        target = root / path.relative_to(ROOT)
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return root


def add_program(path: Path, text: str) -> Path:
    """Write an executable file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    path.chmod(0o755)
    return path


def link_tools(folder: Path, *names: str) -> None:
    """Make a folder that has these programs of this machine and can be a whole PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).symlink_to(str(shutil.which(name)))


class Checkout:
    """The files that a setup script reads, below a folder with a space in its name, and a PATH of tools."""

    def __init__(self, folder: Path, script: str = "setup.sh", *first: str) -> None:
        self.root, self.programs, self.calls_file = folder / "a checkout", folder / "programs", folder / "calls.txt"
        self.pyenv, self.venv = folder / "pyenv", self.root / ".venv"
        self.script, self.first = self.root / "shell" / script, first
        libraries = ("shell/lib/environment.sh", "shell/lib/install.sh", "shell/platform.sh")
        copy_to(self.root, f"shell/{script}", *libraries, "*-requirements.txt")
        link_tools(self.programs, *TOOLS)

    def add_python(
        self,
        name: str | Path = "python3",
        version: str = "3.11.7",
        *,
        has_venv: bool = True,
        has_framework: bool = False,
    ) -> Path:
        """Add a Python on PATH, or at a path."""
        codes = {"no_venv": int(not has_venv), "no_framework": int(not has_framework)}
        return add_program(self.programs / name, STAND_IN.format(version=version, **codes))

    def change(self, name: str) -> None:
        """Add a line to a file of requirements."""
        with (self.root / name).open("a", encoding="utf8") as file:
            file.write("# changed\n")

    def environment(self, **changes: str) -> dict[str, str]:
        """Return the whole environment of a script."""
        given = {"PATH": str(self.programs), "PYENV_ROOT": str(self.pyenv), "CALLS": str(self.calls_file)}
        return {**given, "PLATFORM": "cpu", **changes}

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run the script, forgetting the calls of earlier runs."""
        return self._forgetting([str(self.script), *self.first, *arguments], changes)

    def source(self, commands: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run commands of bash after those of environment.sh."""
        return self._forgetting(["bash", "-c", f"source '{self.root}/shell/lib/environment.sh'; {commands}"], changes)

    def _forgetting(self, command: list[str], changes: dict[str, str]) -> subprocess.CompletedProcess[str]:
        self.calls_file.unlink(missing_ok=True)
        environment = self.environment(**changes)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def calls(self, containing: str = "-m pip") -> list[str]:
        """Return the calls of stand-ins in the last run that contain a text; those of pip, unless told otherwise."""
        lines = self.calls_file.read_text(encoding="utf8").splitlines() if self.calls_file.exists() else []
        return [line for line in lines if containing in line]

    def stamps(self) -> set[str]:
        """Return the names of the stamps in .venv."""
        return {path.name for path in self.venv.glob(".stamp-*")}
