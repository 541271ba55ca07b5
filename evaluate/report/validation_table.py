"""The table that `python -m evaluate.validate` prints: one row for each result."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable

from evaluate.checks.entries import Loaded, job_name
from evaluate.report import tables


def _rows(loaded: Loaded) -> Iterable[tuple[str, str, str, str, str]]:
    has_hosts = len({entry.result["provenance"]["host"] for entry in loaded.entries}) > 1
    for entry in loaded.entries:
        verdict = "REJECTED" if entry.findings.rejections else "valid"
        reasons = [entry.why_not_counted] if entry.why_not_counted else []
        reasons += [f"warning: {line}" for line in entry.findings.warnings]
        name = job_name(entry.result, with_host=has_hosts)
        yield name, str(entry.result["run"]), entry.result["status"], verdict, "; ".join(reasons)
    for path, error in loaded.unreadable:
        yield path.name, "-", "-", "REJECTED", error


def show_validation(loaded: Loaded) -> bool:
    """Print the table and how many count; return whether all do."""
    header = ("job", "run", "status", "verdict", "reason")
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    table = tables.text_table(header, list(_rows(loaded)), width)
    print(tables.coloured(table) if tables.wants_colour(sys.stdout) else table)
    counted = sum(entry.is_counted for entry in loaded.entries)
    total = len(loaded.entries) + len(loaded.unreadable)
    print(f"{counted} of {total} results are ok and valid", file=sys.stderr)
    return counted == total
