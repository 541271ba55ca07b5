"""The command line of `evaluate.compare`: its options and the reading of their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

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
        prog="python -m evaluate.compare",
        description="Compare the results in one or more folders or archives: verdicts, tables and metrics.",
        epilog=EXIT_CODES,
    )
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="folders to search for train_*.json (and benchmark_*.json of earlier "
        "formats), output.zip of shell/wrap.sh, or single result files")  # fmt: skip
    add("--output", type=Path, metavar="DIR", help="folder for compare.{html,md,json,png} "
        f"(default: the first folder if it holds all inputs, else {OUTPUT}/)")  # fmt: skip
    add("--by", choices=tuple(pairs.BY), help="property in which the two sides of a pair differ (default: device if a "
        "platform has several, else platform if there are two, else framework)")  # fmt: skip
    add("--baseline", metavar="SIDE", help="side that the others are compared with, e.g. nvd (default: the first)")
    add("--band", type=band, default=inference.BAND, metavar="SHARE", help="largest relative difference that counts "
        "as none, from 0 to below 1 (default: %(default)s)")  # fmt: skip
    add("--format", type=names_of(ALL_FORMATS), default=FORMATS, metavar="NAMES", help="files to write, any of "
        f"{','.join(ALL_FORMATS)} (default: {','.join(FORMATS)})")  # fmt: skip
    add("--prices", type=Path, metavar="FILE", help="your own price table (default: evaluate/prices.json)")
    add("--target-loss", type=_target_loss, metavar="NATS", help="loss in nats per token; adds the time in seconds to "
        "reach it (default: none)")  # fmt: skip
    add("--token-budget", type=_token_budget, default=BUDGET_TOKENS, metavar="TOKENS", help="tokens for which the "
        "saving of one side over the other is calculated (default: %(default)g)")  # fmt: skip
    add("--against", metavar="BASELINE", help=f"test each job against a baseline, {PUBLISHED} figures or "
        "your own folder or archive: PASS, FAIL or UNKNOWN; with --output, acceptance.json")  # fmt: skip
    add("--at-least", type=_percent, metavar="PERCENT", help="least share of the baseline's tokens/s/GPU that passes, "
        f"with --against (default: {LEAST_PERCENT:g})")  # fmt: skip
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


def band(text: str) -> float:
    """Return the largest relative difference that counts as none."""
    return _within(text, 0, math.nextafter(1, 0), "a share from 0 to below 1, e.g. 0.03")


def names_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of a comma list of known names, which returns them in the order of `known`."""

    def read(text: str) -> tuple[str, ...]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"got {tables.plain(unknown[0])!r}, wanted any of {','.join(known)}")
        return tuple(name for name in known if name in wanted)

    return read


def _token_budget(text: str) -> float:
    return _within(text, 1, 1e24, "a number of tokens from 1 to 1e24, e.g. 15e12")


def _target_loss(text: str) -> float:
    return _within(text, 1e-9, 1e9, "nats per token above 0, e.g. 3.3")


def _percent(text: str) -> float:
    return _within(text.removesuffix("%"), 1, 1000, "a share in percent from 1 to 1000, e.g. 95")


def _within(text: str, least: float, most: float, wanted: str) -> float:
    value = float(text)
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"got {tables.plain(text)}, wanted {wanted}")
    return value
