"""The Python of a framework that has an environment of its own: the one that its setup script prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from utils.errors import ConfigError

ERROR = "error: "


def of_setup(name: str, setup: Path, platform: str) -> str:
    """Return the path that the script `setup` prints; it makes the environment of framework `name` on first use.

    The script's other output is passed on to stderr. Raises ConfigError with the script's reason where it fails.
    """
    environment = {**os.environ, "PLATFORM": platform}
    pipe = subprocess.PIPE
    with subprocess.Popen([str(setup)], env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        reason = f"{name}: {setup} failed without a reason"
        for line in process.stderr:
            if line.startswith(ERROR):
                reason = line.removeprefix(ERROR).strip()
            else:
                print(line, end="", file=sys.stderr, flush=True)
        path = process.stdout.read().strip()
    if process.returncode != 0:
        raise ConfigError(reason)
    return path
