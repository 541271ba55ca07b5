"""The Python that runs NeMo's ranks: one with NeMo, never the suite's own, which has other package versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from train.common.framework_python import of_setup
from utils.errors import ConfigError
from utils.settings.combinations import OF_PLATFORM
from utils.settings.config import ROOT, values_of

SETUP = ROOT / "shell" / "inside" / "setup_nemo.sh"


def interpreter(platform: str, setup: Path = SETUP) -> str:
    """Return the Python that has NeMo; on a CPU its environment is made on first use, which takes minutes.

    The setup's output is passed on to stderr. Raises ConfigError with the reason where there is no such Python and it
    cannot be made.
    """
    return of_setup("nemo", setup, platform)


def without_nemo_if_missing(platform: str, settings: Sequence[str], *, is_dry_run: bool = False) -> list[str]:
    """Return the settings of a matrix; FRAMEWORK=all loses nemo, with a line on stderr, where NeMo has no Python.

    On a CPU its environment is made here; a dry run makes nothing and assumes that it can be made.
    """
    is_everything = values_of(platform, settings)["FRAMEWORK"].text == "all"
    if not is_everything or "nemo" not in OF_PLATFORM[platform] or (is_dry_run and platform == "cpu"):
        return list(settings)
    try:
        interpreter(platform)
    except ConfigError as error:
        others = [name for name in OF_PLATFORM[platform] if name != "nemo"]
        print(f"FRAMEWORK=all: nemo is left out: {error}", file=sys.stderr)
        return [*settings, f"FRAMEWORK={','.join(others)}"]
    return list(settings)
