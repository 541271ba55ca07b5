"""The Python of a framework that has an environment of its own: the one that its setup script prints."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence

from train.machine import gpus
from utils.errors import ConfigError
from utils.frameworks import FRAMEWORKS, counterpart, in_all
from utils.hardware.detect import visible_gpus
from utils.settings.config import ROOT, values_of

ERROR = "error: "
OLDER = {"bridge": "nemo"}
"""Framework that runs in the place of another vendor's where the image has no newer one."""


@functools.cache
def python_of(name: str, platform: str) -> str:
    """Return the Python that has framework `name`; its setup script makes the environment on first use, in minutes.

    The script imports what the trainer imports, which takes seconds, so it runs once in a process. Its other output is
    passed on to stderr. Raises ConfigError with the script's reason where there is no such Python and none can be made.
    """
    setup = ROOT / "shell" / "inside" / "setup_framework.sh"
    environment = {**os.environ, "PLATFORM": platform}
    pipe = subprocess.PIPE
    with subprocess.Popen([str(setup), name], env=environment, stdout=pipe, stderr=pipe, text=True) as process:
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


def without_missing(platform: str, settings: Sequence[str], *, is_dry_run: bool = False) -> list[str]:
    """Return the settings of a matrix with only those frameworks that have a Python here, each change said on stderr.

    FRAMEWORK=all loses the frameworks that have none. Where only one of `OLDER` is there, it is the counterpart of
    another vendor's framework. A framework that is asked for by name stays: its job has the error. On a CPU
    environments are made here; a dry run makes none and assumes that they can be made. On a machine without the
    platform's GPUs it assumes the frameworks of the vendor's image. Raises HardwareError as `visible_gpus` does.
    """
    asked = values_of(platform, settings)["FRAMEWORK"].text
    if is_dry_run and not (gpus.has_torch() and visible_gpus(platform)):
        if platform != "cpu":
            print(
                "note: no torch here sees a GPU, so the plan assumes the frameworks of the vendor's image",
                file=sys.stderr,
            )
        return list(settings)
    names = in_all(platform) if asked == "all" else asked.split(",")
    kept = []
    for name in names:
        newer = counterpart(name, platform)
        if asked == "all" and FRAMEWORKS[name].has_own_python and (reason := _missing(name, platform)):
            print(f"FRAMEWORK=all: {name} is left out: {reason}", file=sys.stderr)
        elif newer in OLDER and (reason := _missing(newer, platform)) and not _missing(OLDER[newer], platform):
            print(f"FRAMEWORK={name}: {OLDER[newer]} runs in place of {newer}: {reason}", file=sys.stderr)
            kept.append(OLDER[newer])
        else:
            kept.append(name)
    return list(settings) if kept == names else [*settings, f"FRAMEWORK={','.join(kept)}"]


def _missing(name: str, platform: str) -> str | None:
    """Return the reason why a framework has no Python here, None where it has one."""
    try:
        python_of(name, platform)
    except ConfigError as error:
        return str(error)
    return None
