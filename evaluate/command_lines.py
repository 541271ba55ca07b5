"""The command lines of this room: the options of every command, and the reading of their values.

Standard library only: a command answers `--help` before it imports what it works with.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from evaluate.metrics.defaults import BAND, BUDGET_TOKENS, BY, FORMATS, JOINABLE, LEAST_PERCENT, PUBLISHED, TABLES
from evaluate.report.tables import plain
from utils.arguments import Parser
from utils.provenance.digests import TOKEN_STREAM_BATCHES
from utils.results.schema import time_of
from utils.settings.config import PLATFORMS

COMPARISON_FOLDER, HISTORY_FOLDER = Path("comparison"), Path("history")
"""Folders of the reports on inputs of several places, and on archives: none of the inputs is changed."""
FAILURES = ("slower", "memory", "loss")
"""Names of `history --fail-on`."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def number(
    least: float, most: float, wanted: str, unit: str = "", kind: type[float] | type[int] = float
) -> Callable[[str], float]:
    """Return a reader of a number of a `kind` (float or int) from `least` to `most`, which may end with `unit`."""

    def read(text: str) -> float:
        digits = text.removesuffix(unit)
        value = kind(digits)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"got {plain(digits)}, wanted {wanted}")
        return value

    # for argparse's message about a text that is no number
    read.__name__ = kind.__name__
    return read


def names_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of a comma list of known names, which returns them in the order of `known`."""

    def read(text: str) -> tuple[str, ...]:
        wanted = text.split(",")
        for name in wanted:
            if name not in known:
                raise argparse.ArgumentTypeError(f"got {plain(name)!r}, wanted any of {','.join(known)}")
        return tuple(name for name in known if name in wanted)

    return read


def _since(text: str) -> datetime:
    try:
        return time_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text}, wanted a UTC date or time, e.g. 2026-11-01") from error


def _steps(text: str) -> tuple[int, int]:
    """Return first and last number of `FIRST-LAST` or `NUMBER`."""
    found = _RANGE.fullmatch(text.strip())
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted FIRST-LAST, such as 3-5, or one number")
    return int(found[1]), int(found[2] or found[1])


band = number(0, math.nextafter(1, 0), "a share from 0 to below 1, e.g. 0.03")
"""Reader of the largest relative difference that counts as none."""


def _text_options(what: str) -> dict[str, dict[str, Any]]:
    """Return `--brief` and `--log`; `what` says what `--brief` leaves of the text."""
    return {
        "--brief": {"action": "store_true", "help": f"print {what} (default: everything)"},
        "--log": {"type": Path, "metavar": "FILE", "help": "also append the whole text to this file (default: none)"},
    }


COMPARE = Parser(
    _text_options("only the verdict, in five lines, and the path of the report")
    | {
        "folders": {
            "nargs": "+",
            "type": Path,
            "help": "folders to search for train_*.json (and benchmark_*.json of earlier formats), output.zip of "
            "shell/wrap.sh, or single result files",
        },
        "--output": {
            "type": Path,
            "metavar": "DIR",
            "help": "folder for compare.{html,md,json,png} "
            f"(default: the first folder if it holds all inputs, else {COMPARISON_FOLDER}/)",
        },
        "--by": {
            "choices": BY,
            "help": "property in which the two sides of a pair differ (default: device if a platform has several, else "
            "platform if there are two, else framework)",
        },
        "--baseline": {
            "metavar": "SIDE",
            "help": "side that the others are compared with, e.g. nvd (default: the first)",
        },
        "--band": {
            "type": band,
            "default": BAND,
            "metavar": "SHARE",
            "help": "largest relative difference that counts as none, from 0 to below 1 (default: %(default)s)",
        },
        "--format": {
            "type": names_of((*FORMATS, *TABLES)),
            "default": FORMATS,
            "metavar": "NAMES",
            "help": f"files to write, any of {','.join((*FORMATS, *TABLES))} (default: {','.join(FORMATS)})",
        },
        "--prices": {
            "type": Path,
            "metavar": "FILE",
            "help": "your own price table (default: evaluate/prices.json)",
        },
        "--target-loss": {
            "type": number(1e-9, 1e9, "nats per token above 0, e.g. 3.3"),
            "metavar": "NATS",
            "help": "loss in nats per token; adds the time in seconds to reach it (default: none)",
        },
        "--token-budget": {
            "type": number(1, 1e24, "a number of tokens from 1 to 1e24, e.g. 15e12"),
            "default": BUDGET_TOKENS,
            "metavar": "TOKENS",
            "help": "tokens for which the saving of one side over the other is calculated (default: %(default)g)",
        },
        "--against": {
            "metavar": "BASELINE",
            "help": f"test each job against a baseline, {PUBLISHED} figures or your own folder or archive: PASS, FAIL "
            "or UNKNOWN; with --output, acceptance.json",
        },
        "--at-least": {
            "type": number(1, 1000, "a share in percent from 1 to 1000, e.g. 95", unit="%"),
            "metavar": "PERCENT",
            "help": "least share of the baseline's tokens/s/GPU that passes, with --against (default: "
            f"{LEAST_PERCENT:g})",
        },
    },
    module="evaluate.compare",
)
VALIDATE = Parser(
    _text_options("only the results that are not ok or not valid, and each kind of warning once"),
    module="evaluate.validate",
)
_SOURCE = VALIDATE.add_mutually_exclusive_group(required=True)
_SOURCE.add_argument(
    "folders",
    nargs="*",
    type=Path,
    default=[],
    help="folders to search for train_*.json (and benchmark_*.json of earlier formats), or single result files",
)
_SOURCE.add_argument(
    "--bundle",
    nargs="+",
    type=Path,
    metavar="ZIP",
    help="archives of shell/wrap.sh to check against their manifests, raw logs and reports",
)
FRAME = Parser(
    {
        "paths": {
            "nargs": "+",
            "type": Path,
            "help": "folders to search for results, output.zip of shell/wrap.sh, or results",
        },
        "--output": {
            "type": Path,
            "metavar": "FILE",
            "help": "file to write, .csv or .parquet (default: CSV to stdout)",
        },
        "--steps": {"action": "store_true", "help": "a row for each step (default: for each run)"},
    },
    module="evaluate.frame",
)
HISTORY = Parser(
    {
        "places": {
            "nargs": "+",
            "type": Path,
            "metavar": "FOLDER|ZIP",
            "help": "folders to search for results, output.zip of shell/wrap.sh, or single result files, in any order",
        },
        "--output": {
            "type": Path,
            "metavar": "DIR",
            "help": "folder for history.{html,json} (default: the input if it is one folder, else "
            f"{HISTORY_FOLDER}/)",
        },
        "--band": {
            "type": band,
            "default": BAND,
            "metavar": "SHARE",
            "help": "largest relative difference in speed and memory that counts as none, from 0 to below 1 "
            "(default: %(default)s)",
        },
        "--since": {
            "type": _since,
            "metavar": "TIME",
            "help": "leave out runs that started before this UTC date or time, e.g. 2026-11-01: for a change that is "
            "accepted (default: none)",
        },
        "--join": {
            "type": names_of(JOINABLE),
            "default": (),
            "metavar": "NAMES",
            "help": f"any of {','.join(JOINABLE)}: runs that differ in it share a series, e.g. on a cluster that gives "
            "another node each day (default: none)",
        },
        "--fail-on": {
            "type": names_of(FAILURES),
            "default": ("slower",),
            "metavar": "NAMES",
            "help": f"what makes exit code 3, any of {','.join(FAILURES)} (default: slower)",
        },
    },
    module="evaluate.history",
)
TRACE = Parser(
    {
        "traces": {
            "nargs": "+",
            "type": Path,
            "metavar": "TRACE",
            "help": "trace of torch.profiler, .json or .json.gz",
        },
        "--steps": {
            "type": _steps,
            "metavar": "FIRST-LAST",
            "help": "steps that count, by their ProfilerStep# (default: all)",
        },
        "--device": {"type": int, "help": "number of the GPU that counts (default: the busiest of the trace)"},
        "--format": {"choices": ("text", "json"), "default": "text", "help": "form of stdout (default: text)"},
        "--output": {"type": Path, "metavar": "DIR", "help": "folder for trace.html and trace.json"},
        "--probe": {
            "type": Path,
            "action": "append",
            "default": [],
            "metavar": "FILE",
            "help": "probe of the device (python -m train.probe), for the share of its rate; once for each device",
        },
        "--top": {
            "type": number(1, 10_000, "a number from 1 to 10000", kind=int),
            "default": 20,
            "help": "operators to show (default: %(default)s)",
        },
    },
    module="evaluate.trace",
)
MLPERF = Parser(
    {
        "folder": {"type": Path, "help": "folder of results as MLCommons publishes them"},
        "--band": {
            "type": band,
            "default": BAND,
            "help": "largest relative difference that does not matter (default: %(default)s)",
        },
        "--output": {"type": Path, "help": "JSON file to write (default: none)"},
    },
    module="evaluate.mlperf",
)
REPRODUCE = Parser(
    {
        "step": {"choices": ("plan", "judge"), "help": "print the settings of the jobs, or test their results"},
        "archive": {"type": Path, "metavar": "ARCHIVE.zip", "help": "archive of shell/run_wrap.sh"},
        "--platform": {"required": True, "choices": ("amd", "nvd", "cpu"), "help": "platform of this machine"},
        "--results": {"type": Path, "metavar": "DIR", "help": "judge: folder of the results of this machine"},
        "--at-least": {
            "type": float,
            "default": LEAST_PERCENT,
            "metavar": "PERCENT",
            "help": "judge: least share of the archive's tokens/s/GPU that passes (default: %(default)g)",
        },
    },
    module="evaluate.reproduce",
)
FINGERPRINT = Parser(
    {
        "prefix": {"type": Path, "help": "path of the pair without .bin / .idx"},
        "--tokenizer": {
            "type": Path,
            "help": "folder of the tokenizer (default: take the digest from the manifest)",
        },
        "--platform": {"choices": PLATFORMS, "help": "digest the token stream of a training on this platform"},
        "--visible-gpus": {"type": int, "help": "GPUs of the training machine (default: as torch reports, else 1)"},
        "--batches": {
            "type": int,
            "default": TOKEN_STREAM_BATCHES,
            "help": "global batches to digest (default: %(default)s)",
        },
        "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": "settings of the training"},
    },
    module="evaluate.fingerprint",
)
SWEEP = Parser(
    {"file": {"type": Path, "help": "file of the sweep: OUTPUT_DIR/sweeps/<name>.json"}}, module="evaluate.sweep"
)
