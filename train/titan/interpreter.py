"""The Python that runs torchtitan's ranks: one that sees torchtitan beside the packages of the suite."""

from __future__ import annotations

from pathlib import Path

from train.common.framework_python import of_setup
from utils.settings.config import ROOT

SETUP = ROOT / "shell" / "inside" / "setup_titan.sh"


def interpreter(platform: str, setup: Path = SETUP) -> str:
    """Return the Python that has torchtitan; outside an image its environment is made on first use, in seconds.

    Raises ConfigError with the reason where there is no such Python and it cannot be made.
    """
    return of_setup("titan", setup, platform)
