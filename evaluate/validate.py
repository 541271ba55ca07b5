"""Check results beyond their schema: do the numbers follow from the raw samples, and did what was asked run?

    python -m evaluate.validate output/ [more folders]
    python -m evaluate.validate --bundle output.zip [more archives of shell/wrap.sh]

Prints one row for each result. Exits 0 when all are ok and valid, 1 when any is rejected or not ok, 2 for bad input.
The rules are in `evaluate/checks/consistency.py`, `evaluate/checks/limits.py` and `evaluate/checks/identity.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.checks.entries import load_results
from evaluate.report import tables
from evaluate.report.validation_table import show_validation
from utils.results import store


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluate.validate",
        description="Check every train_*.json (and benchmark_*.json of earlier formats) below the folders: schema, "
        "numbers against samples, asked against ran.",
        epilog="Exits 0: all ok and valid. 1: any rejected or not ok. 2: bad input, or no result found.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folders", nargs="*", type=Path, default=[], help="folders to search, or single result files")
    source.add_argument("--bundle", nargs="+", type=Path, metavar="ZIP", help="archives of shell/wrap.sh, against "
                        "their manifest, raw logs and reports")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.bundle:
        from evaluate.bundle import check as bundle  # which stands on this file

        return bundle.main(options.bundle)
    try:
        loaded = load_results(options.folders)
    except store.ResultError as error:
        print(f"error: {tables.plain(error)}", file=sys.stderr)
        return 2
    return 0 if show_validation(loaded) else 1


if __name__ == "__main__":
    sys.exit(main())
