"""Check results and archives against their own raw samples and logs.

Usage:   ./shell/validate.sh FOLDER|FILE ... | --bundle ZIP ... [OPTION ...]
Reads:   train_*.json below the folders, archives of shell/wrap.sh
Writes:  nothing
Exits:   0 all results are ok and valid (and the archives unchanged), 1 any is not, 2 bad input, or no result found
Example: ./shell/validate.sh --bundle output.zip

Numbers are compared with the raw samples, and requested settings with those that ran; one row is printed for each
result. The rules are in `evaluate/checks`; docs/compare.md lists them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.command_lines import VALIDATE

if __name__ == "__main__":
    VALIDATE.parse_first()

from evaluate.bundle.archive import MANIFEST, BundleError
from evaluate.checks.entries import Loaded, job_name, load_results
from evaluate.report import brief
from evaluate.report.renderers import terminal_width
from evaluate.report.tables import counted, plain, text_table
from utils.arguments import refusing, run
from utils.results import store


@refusing((store.ResultError, BundleError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = VALIDATE.parse_args(arguments)
    if options.bundle:
        # a list, because every archive is checked, also behind one with a fault
        return max([_check_bundle(path, options) for path in options.bundle])
    return 0 if _show(load_results(options.folders), options) else 1


def _check_bundle(path: Path, options: argparse.Namespace) -> int:
    """Check an archive and print its results, faults and notes; return the exit code."""
    from evaluate.bundle.check import check  # imports every report

    checked = check(path)
    if len(options.bundle) > 1:
        print(f"== {plain(path)}")
    is_good = _show(checked.loaded, options)
    for line in checked.faults:
        print(f"{plain(path.name)}: {plain(line)}")
    for line in checked.notes:
        print(f"note: {plain(line)}", file=sys.stderr)
    summary = f"{checked.files} files match {MANIFEST}, and every figure follows from the raw logs"
    if checked.faults:
        summary = counted(len(checked.faults), "fault")
    print(f"{plain(path)}: {summary}", file=sys.stderr)
    return 0 if is_good and not checked.faults else 1


def _show(loaded: Loaded, options: argparse.Namespace) -> bool:
    """Print the table of results and the number that count; return whether all do."""
    width, rows = terminal_width(), _rows(loaded)
    header = ("job", "run", "status", "verdict", "reason")
    brief_lines = brief.warning_lines(loaded.entries, width)
    bad = [row for row in rows if row[2:4] != ("ok", "valid")]
    if bad:
        brief_lines = [text_table(header, bad, width), *brief_lines]
    brief.show(options, text_table(header, rows, width), "\n".join(brief_lines))
    good = [entry for entry in loaded.entries if entry.is_counted]
    print(f"{len(good)} of {counted(len(rows), 'result')} ok and valid", file=sys.stderr)
    return len(good) == len(rows)


def _rows(loaded: Loaded) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each result and for each file that cannot be read."""
    rows = []
    # the host is in the name of a job only where it distinguishes jobs
    has_hosts = len({entry.result["provenance"]["host"] for entry in loaded.entries}) > 1
    for entry in loaded.entries:
        reasons = [f"warning: {line}" for line in entry.findings.warnings]
        if entry.why_not_counted:
            reasons.insert(0, entry.why_not_counted)
        verdict = "REJECTED" if entry.findings.rejections else "valid"
        job, run = job_name(entry.result, with_host=has_hosts), str(entry.result["run"])
        rows.append((job, run, entry.result["status"], verdict, "; ".join(reasons)))
    for path, error in loaded.unreadable:
        rows.append((path.name, "-", "-", "REJECTED", error))
    return rows


if __name__ == "__main__":
    sys.exit(run(main))
