"""A checkout with one setup script of shell/inside and a PATH of stand-ins, to see what it installs and prints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from utils.settings.config import ROOT

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
# Plays a Python of the machine, the one of an environment and its pip; writes every call into calls.txt.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  -V) echo "Python {version}" ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip"*) [[ $* != *"${{PIP_FAILS_ON:-nothing}}"* ]] ;;
  *"torch_source.py answers"*) exit 1 ;;
  *find_spec*) exit {exit_code} ;;
  *"import train.train_"* | *pretrain_gpt*)
    [[ -z ${{LACKS:-}} ]] || {{ echo "Error: No module named '$LACKS'" >&2; exit 1; }} ;;
  *m.version*) echo 0.3.1 ;;
esac
"""


class Checkout:
    """The files that setup_<framework>.sh reads, below a folder with a space in its name, and a PATH of tools."""

    def __init__(self, folder: Path, framework: str) -> None:
        self.root, self.programs, self.calls_file = folder / "a checkout", folder / "programs", folder / "calls.txt"
        self.pyenv = folder / "pyenv"
        self.programs.mkdir()
        self.script = Path("shell", "inside", f"setup_{framework}.sh")
        for name in (self.script, "shell/lib/environment.sh", "shell/lib/install.sh", "shell/platform.sh"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        shutil.copy(ROOT / f"{framework}-requirements.txt", self.root)
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))

    def add_python(self, name: str | Path, version: str, *, has_framework: bool = False) -> Path:
        """Add a Python on PATH, or at a path."""
        path = self.programs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(STAND_IN.format(version=version, exit_code=0 if has_framework else 1), encoding="utf8")
        path.chmod(0o755)
        return path

    def run(self, platform: str = "cpu", **changes: str) -> subprocess.CompletedProcess[str]:
        """Run the script, forgetting the calls of earlier runs."""
        self.calls_file.unlink(missing_ok=True)
        environment = {"PATH": str(self.programs), "PYENV_ROOT": str(self.pyenv), "CALLS": str(self.calls_file)}
        environment |= {"PLATFORM": platform} | changes
        command = [str(self.root / self.script)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def installs(self) -> list[str]:
        """Return the calls of pip in the last run."""
        lines = self.calls_file.read_text(encoding="utf8").splitlines() if self.calls_file.exists() else []
        return [line for line in lines if "-m pip" in line]
