"""The command line of `train.probe`, which needs the standard library only, as help does."""

from __future__ import annotations

import argparse

from utils.arguments import Parser
from utils.settings.config import PLATFORMS

SECONDS, QUICK_SECONDS = 10.0, 1.8
"""Seconds of the rate of each precision, which set those of all other parts."""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"got {text}, wanted seconds above 0, up to 600")
    return value


PROBE = Parser(
    {
        "--platform": {"required": True, "choices": PLATFORMS},
        "--seconds": {
            "type": _seconds,
            "help": f"seconds for the rate of each precision; all other parts follow (default: {SECONDS:g})",
        },
        "--quick": {"action": "store_true", "help": "about 15 seconds in all instead of 80"},
        "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": "settings of the jobs, e.g. OUTPUT_DIR=output"},
    },
    module="train.probe",
)
