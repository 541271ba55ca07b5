"""Compare the results in one or more folders or archives: verdicts, tables and metrics.

Usage:   evaluate/compare.sh FOLDER|ZIP ... [OPTION ...]
         evaluate/compare.sh [KEY=VALUE ...]             the folder of these settings (OUTPUT_DIR, LABEL)
Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
Writes:  compare.{html,md,json,png} into the folder of --output (default: the first folder if it holds all inputs, else
         comparison/)
Exits:   0 at least one pair has a verdict; 3 no pair could be compared; 1 no result is ok and valid, or an output
         cannot be written; 2 bad input, or no result found. With --against: 0 every job passes; 1 at least one fails;
         3 none fails, and at least one is unknown
Example: evaluate/compare.sh amd.zip nvd.zip --output report --by platform

An output.zip of shell/wrap.sh is checked first, as `evaluate.validate --bundle` does, and then read like a folder.
Results of another model, size, method, sequence length, global batch, precision or data never share a table. Results
that are not ok or break a rule are listed with their reason and enter no average. `--against` tests each job against a
baseline instead (evaluate/acceptance).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.command_lines import COMPARE, COMPARISON_FOLDER

if __name__ == "__main__":
    COMPARE.parse_first()

from evaluate.bundle import as_input
from evaluate.comparing.writing import check_places, places, write
from evaluate.frames.files import MissingPackageError
from evaluate.metrics import prices
from evaluate.metrics.defaults import LEAST_PERCENT, PUBLISHED
from evaluate.metrics.prices import PriceError
from evaluate.report import brief, document, renderers, tables
from evaluate.report.comparison import Comparison, as_json, compare
from evaluate.verdict import pairs
from evaluate.verdict.sentences import NOT_COMPARABLE
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.results import store

__all__ = ("as_json", "main", "write")
NOTHING_COMPARABLE = 3


@refusing((store.ResultError, PriceError, ForeignFileError, MissingPackageError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = COMPARE.parse_args(arguments)
    _check_together(options)
    if options.against is not None:
        from evaluate.acceptance import command as acceptance  # which a comparison does not need

        return acceptance.run(options)
    for folder in options.folders:
        store.require_place(folder)
    output: Path = options.output or _place(options.folders)
    store.require_folder(output)
    check_places(output, options.format)
    comparison = _compared(options)
    is_failure = not any(group.counted for group in comparison.groups)
    wanted = list(places(output, options.format).values())
    earlier = [path for path in wanted if path.exists()]
    try:
        if not (is_failure and earlier):
            write(comparison, output, options.format)
    except (OSError, ForeignFileError, store.ResultError) as error:
        return tables.not_written(output, error, "; name another with --output")
    page, width = wanted[0] if "html" not in options.format else output / "compare.html", renderers.terminal_width()
    few = "\n".join(brief.verdict_lines(comparison, page, width)) if options.brief else ""
    brief.show(options, renderers.terminal(document.blocks(comparison), width), few)
    if is_failure and earlier:
        print(f"kept the earlier {tables.plain(', '.join(map(str, earlier)))}", file=sys.stderr)
    elif not options.brief:
        print(f"wrote {tables.plain(', '.join(map(str, wanted)))}", file=sys.stderr)
    if is_failure:
        print("error: no result is ok and valid; see the reasons above, and train again", file=sys.stderr)
        return 1
    return 0 if any(judged.word != NOT_COMPARABLE for judged in comparison.judged) else NOTHING_COMPARABLE


def _check_together(options: argparse.Namespace) -> None:
    """Exit 2 for an option that has no meaning with or without --against, and set the default of --at-least."""
    if options.against is None:
        if options.at_least is not None:
            COMPARE.error("--at-least: got it without --against, wanted --against published or a baseline of your own")
        return
    if not options.against:
        COMPARE.error(f"--against: got an empty text, wanted {PUBLISHED}, or a folder or an archive of results")
    for name in ("by", "baseline", "band", "format", "prices", "target_loss", "token_budget", "brief", "log"):
        if getattr(options, name) != COMPARE.get_default(name):
            COMPARE.error(f"--{name.replace('_', '-')}: has no meaning with --against; leave out one of them")
    if options.at_least is None:
        options.at_least = LEAST_PERCENT


def _place(inputs: Sequence[Path]) -> Path:
    """Return the folder of the reports: the first one if it holds all inputs, else one in the working directory."""
    first = inputs[0].parent if inputs[0].is_file() else inputs[0]
    inside = (path.resolve().is_relative_to(first.resolve()) and not as_input.is_bundle(path) for path in inputs)
    return first if all(inside) else COMPARISON_FOLDER


def _compared(options: argparse.Namespace) -> Comparison:
    """Return the comparison that the options ask for; raise ResultError or PriceError for bad input."""
    table = prices.load(options.prices or prices.PRICES_PATH)
    found = as_input.load(options.folders)
    for line in (*found.probes.errors, *found.profiles.errors):
        print(f"warning: {tables.plain(line)}; the file is not used", file=sys.stderr)
    comparison = compare(
        *(found, options.folders, options.by, options.baseline, options.band, table, options.target_loss),
        token_budget=options.token_budget,
    )
    known = sorted({pairs.BY[comparison.by](entry.result) for entry in comparison.entries})
    if options.baseline is not None and options.baseline not in known:
        raise store.ResultError(f"--baseline: got {options.baseline}, wanted one of {', '.join(known)}")
    return comparison


if __name__ == "__main__":
    sys.exit(run(main))
