"""The Python that runs NeMo's ranks: one with NeMo, never the suite's own, which has other package versions."""

from __future__ import annotations

from pathlib import Path

from train.common.framework_python import of_setup
from utils.settings.config import ROOT

SETUP = ROOT / "shell" / "inside" / "setup_nemo.sh"


def interpreter(platform: str, setup: Path = SETUP) -> str:
    """Return the Python that has NeMo; on a CPU its environment is made on first use, which takes minutes.

    The setup's output is passed on to stderr. Raises ConfigError with the reason where there is no such Python and it
    cannot be made.
    """
    return of_setup("nemo", setup, platform)
