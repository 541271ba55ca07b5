"""The command line of `evaluate.compare`: its options and the reading of their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evaluate.comparing.writing import ALL_FORMATS, FORMATS
from evaluate.metrics.published import LEAST_PERCENT, PUBLISHED
from evaluate.report import brief, tables
from evaluate.verdict import inference, pairs
from evaluate.verdict.saving import BUDGET_TOKENS
from utils.arguments import Parser

EXIT_CODES = (
    "Exit codes: 0 at least one pair has a verdict; 3 no pair could be compared; 1 no result is ok and valid, or an "
    "output cannot be written; 2 bad input, or no result found. With --against: 0 every job passes; 1 at least one job "
    "fails; 3 none fails, and of at least one it is unknown; 2 bad input."
)
OUTPUT = Path("comparison")
"""Folder of the reports on inputs of several places, and on archives: none of the inputs is changed."""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; exit 2 with one line for bad input."""
    parser = Parser(
        OPTIONS,
        prog="python -m evaluate.compare",
        description="Compare the results in one or more folders or archives: verdicts, tables and metrics.",
        epilog=EXIT_CODES,
    )
    brief.add_options(parser, "only the verdict, in five lines, and the path of the report")
    options = parser.parse_args(arguments)
    _check_together(parser, options)
    return options


def _check_together(parser: Parser, options: argparse.Namespace) -> None:
    """Exit 2 for an option that has no meaning with or without --against, and set the default of --at-least."""
    if options.against is None:
        if options.at_least is not None:
            parser.error("--at-least: got it without --against, wanted --against published or a baseline of your own")
        return
    if not options.against:
        parser.error(f"--against: got an empty text, wanted {PUBLISHED}, or a folder or an archive of results")
    for name in ("by", "baseline", "band", "format", "prices", "target_loss", "token_budget", "brief", "log"):
        if getattr(options, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')}: has no meaning with --against; leave out one of them")
    if options.at_least is None:
        options.at_least = LEAST_PERCENT


def number(least: float, most: float, wanted: str, unit: str = "") -> Callable[[str], float]:
    """Return a reader of a number from `least` to `most`, which may end with `unit`."""

    def read(text: str) -> float:
        digits = text.removesuffix(unit)
        value = float(digits)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"got {tables.plain(digits)}, wanted {wanted}")
        return value

    return read


def names_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of a comma list of known names, which returns them in the order of `known`."""

    def read(text: str) -> tuple[str, ...]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"got {tables.plain(unknown[0])!r}, wanted any of {','.join(known)}")
        return tuple(name for name in known if name in wanted)

    return read


band = number(0, math.nextafter(1, 0), "a share from 0 to below 1, e.g. 0.03")
"""Reader of the largest relative difference that counts as none."""
OPTIONS: dict[str, dict[str, Any]] = {
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
        f"(default: the first folder if it holds all inputs, else {OUTPUT}/)",
    },
    "--by": {
        "choices": tuple(pairs.BY),
        "help": "property in which the two sides of a pair differ (default: device if a platform has several, else "
        "platform if there are two, else framework)",
    },
    "--baseline": {
        "metavar": "SIDE",
        "help": "side that the others are compared with, e.g. nvd (default: the first)",
    },
    "--band": {
        "type": band,
        "default": inference.BAND,
        "metavar": "SHARE",
        "help": "largest relative difference that counts as none, from 0 to below 1 (default: %(default)s)",
    },
    "--format": {
        "type": names_of(ALL_FORMATS),
        "default": FORMATS,
        "metavar": "NAMES",
        "help": f"files to write, any of {','.join(ALL_FORMATS)} (default: {','.join(FORMATS)})",
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
        "help": f"test each job against a baseline, {PUBLISHED} figures or your own folder or archive: PASS, FAIL or "
        "UNKNOWN; with --output, acceptance.json",
    },
    "--at-least": {
        "type": number(1, 1000, "a share in percent from 1 to 1000, e.g. 95", unit="%"),
        "metavar": "PERCENT",
        "help": f"least share of the baseline's tokens/s/GPU that passes, with --against (default: {LEAST_PERCENT:g})",
    },
}
"""Options with the arguments of their `add_argument`."""
