"""Write results as a table for pandas, R or a spreadsheet: a row for each run, or with --steps for each step.

Usage:   ./shell/frame.sh FOLDER|ZIP|RESULT ... [--output FILE.csv|FILE.parquet] [--steps]
Reads:   results, and output.zip of shell/wrap.sh
Writes:  the file of --output; without it CSV on stdout
Exits:   0 the table is written, 1 it cannot be written, 2 bad input, or no result found
Example: ./shell/frame.sh amd.zip nvd.zip --output runs.csv

From Python: `load` and `load_steps` return pandas DataFrames. Both take folders, archives of shell/wrap.sh, which are
checked first, and single results, and need no torch. docs/analysis.md describes the columns.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluate.command_lines import FRAME

if __name__ == "__main__":
    FRAME.parse_first()

from evaluate.bundle import as_input
from evaluate.frames import tables
from evaluate.report.groups import without_copies
from evaluate.report.tables import not_written, plain
from evaluate.verdict import pairs
from evaluate.verdict.odd_runs import without_odd_runs
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.files import write_whole
from utils.own_files import require_ours
from utils.results.store import ResultError

UNREADABLE = "unreadable"
"""Key of DataFrame.attrs: the files that could not be read, each with its path and the reason."""


def load(*paths: str | os.PathLike[str]) -> Any:
    """Return a pandas.DataFrame with a row for each result in folders, archives and single files.

    Rejected and failed results and copies are rows too: `is_counted` is what a comparison of these paths would do, and
    `why_not_counted` the reason. Missing values are NA, NaN or NaT. A file that cannot be read is no row: it gives a
    UserWarning and an entry of `attrs["unreadable"]`. Raises ResultError for a missing path, for an archive with a
    fault, and if no result can be read.
    """
    return _loaded(paths, tables.runs)


def load_steps(*paths: str | os.PathLike[str]) -> Any:
    """Return a pandas.DataFrame with a row for each step of the same results; raise as `load` does.

    `file` identifies the run in both tables: `load_steps(folder).merge(load(folder), on="file")`. Seconds, losses in
    nats per token; `is_steady` is True for the steps behind the throughput of a counted run.
    """
    return _loaded(paths, tables.steps)


def _loaded(paths: Sequence[str | os.PathLike[str]], make: Any) -> Any:
    if not paths:
        raise ResultError("got no path, wanted folders, archives or results")
    loaded = as_input.load([Path(path) for path in paths])
    if not loaded.entries:
        raise ResultError(loaded.unreadable[0][1])
    unique, copies = without_copies(loaded.entries)
    frame = make(without_odd_runs(unique, pairs.default_by(unique)), copies)
    frame.attrs[UNREADABLE] = [{"file": str(path), "reason": reason} for path, reason in loaded.unreadable]
    for path, reason in loaded.unreadable:
        warnings.warn(f"{plain(path)}: left out, because it cannot be read: {plain(reason)}", stacklevel=3)
    return frame


@refusing((ResultError, ForeignFileError, tables.MissingPackageError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = FRAME.parse_args(arguments)
    output: Path | None = options.output
    name = output.suffix.removeprefix(".").lower() if output else "csv"
    if output and name not in tables.RECOGNISERS:
        raise ResultError(f"--output: got {output}, wanted a name that ends in .csv or .parquet")
    # before anything is read, which may take long
    tables.require_packages(name)
    if output:
        require_ours(tables.RECOGNISERS[name], output)
    # `load` warns a caller in Python; here each warning is one line
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        frame = (load_steps if options.steps else load)(*options.paths)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    content = tables.content(frame, name)
    if output is None:
        sys.stdout.write(content.decode())
        return 0
    try:
        write_whole(output, content, is_ours=tables.RECOGNISERS[name])
    except (OSError, ForeignFileError) as error:
        return not_written(output, error, "; name another --output")
    print(f"wrote {plain(output)}: {len(frame):,} rows, {len(frame.columns)} columns", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
