"""Check results beyond their schema: do the numbers follow from the raw samples, and did what was asked run?

    python -m evaluate.validate output/ [more folders]
    python -m evaluate.validate --bundle output.zip [more archives of shell/wrap.sh]

Prints one row for each result. Exits 0 when all are ok and valid, 1 when any is rejected or not ok, 2 for bad input.
The rules are in `evaluate/rules.py`, `evaluate/limits.py` and `evaluate/identity.py`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluate import earlier, identity, mlperf_results, probe, tables
from evaluate.limits import LIMITS, energy_has_two_sources
from evaluate.rules import REJECTING_RULES, WARNING_RULES, Result, absurd_numbers
from utils import results

REJECTING = (*REJECTING_RULES, *LIMITS, identity.framework_is_what_ran, earlier.summary_agrees)
WARNING = (
    *WARNING_RULES,
    identity.model_is_what_it_is_called,
    identity.loss_is_of_unseen_data,
    energy_has_two_sources,
)


@dataclass(frozen=True)
class Findings:
    """What the rules found in one result: any rejection makes it unfit for a comparison, a warning does not."""

    rejections: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def with_rejections(self, more: Sequence[str]) -> Findings:
        """Return these findings with more rejections."""
        return replace(self, rejections=(*self.rejections, *more)) if more else self


@dataclass(frozen=True)
class Entry:
    """A result that could be read, with its file and findings."""

    path: Path
    result: Result
    findings: Findings

    @property
    def is_counted(self) -> bool:
        """Whether the result takes part in averages: status ok and not rejected."""
        return self.result["status"] == "ok" and not self.findings.rejections

    @property
    def why_not_counted(self) -> str:
        """The reason of the trainer and those of the rules; empty for a counted result."""
        reason = self.result["reason"]
        return "; ".join(([reason] if reason else []) + list(self.findings.rejections))


@dataclass(frozen=True)
class Loaded:
    """Everything found in the folders; `unreadable` are files that are no results, with the error of each."""

    entries: tuple[Entry, ...]
    unreadable: tuple[tuple[Path, str], ...]


def check(result: Result) -> Findings:
    """Return what all rules find in `result`, which must satisfy the schema (`utils.results.read` saw to that)."""
    if absurd := list(absurd_numbers(result)):
        return Findings(rejections=tuple(absurd))
    return Findings(
        rejections=tuple(line for rule in REJECTING for line in rule(result)),
        warnings=tuple(line for rule in WARNING for line in rule(result)),
    )


def load(paths: Sequence[Path]) -> Loaded:
    """Read and check every result below `paths`, those of earlier formats and of MLPerf's logs too.

    Raises ResultError where a path is missing or nothing was found.
    """
    found: list[tuple[Path, dict[str, Any]]] = []
    unreadable = []
    for path in (*results.find(paths), *earlier.find(paths)):
        try:
            found.append((path, earlier.read(path) if earlier.is_named(path) else results.read(path)))
        except results.ResultError as error:
            unreadable.append((path, str(error)))
    of_mlperf, unbelievable = mlperf_results.load(paths)
    found += of_mlperf
    unreadable += unbelievable
    earlier.numbered([one for one in found if earlier.is_named(one[0])])
    probes = probe.load(paths)
    for _, result in found:
        probe.attach(result, probes)
    entries = [
        Entry(path, result, check(result).with_rejections(twins))
        for (path, result), twins in zip(found, identity.same_times(found), strict=True)
    ]
    if not entries and not unreadable:
        searched = ", ".join(str(path) for path in paths)
        advice = "train first, or name the folder that holds them"
        raise results.ResultError(f"{searched}: got no result, wanted train_*.json or benchmark_*.json files; {advice}")
    return Loaded(tuple(entries), tuple(unreadable))


def job_name(result: Result, *, with_host: bool = False) -> str:
    """Return `platform/framework model size method [label] [@ host]`, the name of a job in tables."""
    name = f"{result['platform']}/{result['framework']} {result['model']} {result['model_size']} {result['method']}"
    name += f" [{result['label']}]" if result["label"] else ""
    return name + (f" @ {result['provenance']['host'] or 'unknown host'}" if with_host else "")


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


def show(loaded: Loaded) -> bool:
    """Print the table and how many count; return whether all do."""
    header = ("job", "run", "status", "verdict", "reason")
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    table = tables.text_table(header, list(_rows(loaded)), width)
    print(tables.coloured(table) if tables.wants_colour(sys.stdout) else table)
    counted = sum(entry.is_counted for entry in loaded.entries)
    total = len(loaded.entries) + len(loaded.unreadable)
    print(f"{counted} of {total} results are ok and valid", file=sys.stderr)
    return counted == total


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
        from evaluate import bundle  # which stands on this file

        return bundle.main(options.bundle)
    try:
        loaded = load(options.folders)
    except results.ResultError as error:
        print(f"error: {tables.plain(error)}", file=sys.stderr)
        return 2
    return 0 if show(loaded) else 1


if __name__ == "__main__":
    sys.exit(main())
