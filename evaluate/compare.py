"""Compare the results in one or more folders.

    python -m evaluate.compare output/ [more folders] [--output DIR]

Writes compare.{html,md,json,png} and prints verdicts and tables. Exits 0 when a verdict was made, 3 when nothing could
be compared, 1 when no single result is ok and valid or an output cannot be written, 2 for bad input or when no result
was found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluate import pairs, report, statistics, tables, verdicts
from evaluate.grouping import grouped
from evaluate.notes import notes
from evaluate.prices import PriceError
from evaluate.report import Comparison
from evaluate.summary import Group, Row, Spread, ratios
from evaluate.validate import Entry, Loaded, load
from utils import results

COMPARISON_VERSION = 2
NOTHING_COMPARABLE = 3


def compare(
    loaded: Loaded,
    folders: Sequence[Path],
    by: str | None = None,
    baseline: str | None = None,
    band: float = statistics.BAND,
) -> Comparison:
    """Return the comparison of everything that was loaded from `folders`.

    `by` is what the two sides of a pair differ in (None: platform where there are two, else framework), `baseline` the
    side that is `a` in each pair, `band` the largest difference that does not matter, stated beforehand.
    """
    groups, copies = grouped(loaded.entries)
    doubled = {id(copy) for copy, _ in copies}
    entries = [entry for entry in loaded.entries if id(entry) not in doubled]
    by = by or pairs.default_by(entries)
    judged = verdicts.judge(pairs.pairs(entries, by, baseline), by, band)
    return Comparison(tuple(folders), tuple(groups), tuple(copies), loaded.unreadable, tuple(judged), by, band)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the content of compare.json; the ratio of a verdict is b over a."""
    return {
        "comparison_version": COMPARISON_VERSION,
        "by": comparison.by,
        "band": comparison.band,
        "confidence": statistics.CONFIDENCE,
        "verdicts": [judged.as_json() for judged in comparison.judged],
        "folders": [str(folder) for folder in comparison.folders],
        "groups": [_group_json(group) for group in comparison.groups],
        "copies": [{"file": str(copy.path), "same_as": str(first.path)} for copy, first in comparison.copies],
        "unreadable": [{"file": str(path), "reason": error} for path, error in comparison.unreadable],
    }


def write(comparison: Comparison, folder: Path) -> None:
    """Write compare.{json,md,html,png} into `folder`, each whole; raise OSError where that fails."""
    from evaluate import (
        page,
        plots,
    )  # matplotlib takes a second to import, which --help and bad input need not wait for

    folder.mkdir(parents=True, exist_ok=True)
    results.write_json(as_json(comparison), folder / "compare.json")
    _write_whole(report.markdown(comparison).encode(), folder / "compare.md")
    _write_whole(page.page(comparison).encode(), folder / "compare.html")
    _write_whole(plots.png(comparison.groups, comparison.headline), folder / "compare.png")


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "key": group.key._asdict(),
        "rows": [_row_json(row) for row in group.rows],
        "ratios": [
            {"row": r.row.letter, "base": r.base.letter, "mean": r.value, "min": r.low, "max": r.high}
            for r in ratios(group)
        ],
        "notes": notes(group),
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "letter": row.letter,
        **row.key._asdict(),
        "runs_counted": len(row.counted),
        "runs_found": len(row.entries),
        "tokens_per_second_per_gpu": _spread_json(row.throughput),
        "step_time_seconds": _spread_json(row.step_time),
        "peak_memory_allocated_gb": _spread_json(row.memory),
        "first_loss": _spread_json(row.first_loss),
        "last_loss": _spread_json(row.last_loss),
        "results": [_entry_json(entry) for entry in row.entries],
    }


def _spread_json(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    summary = {"mean": spread.mean, "median": spread.median, "min": spread.low, "max": spread.high}
    return summary | {"runs": list(spread.values)}


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "file": str(entry.path),
        "run": entry.result["run"],
        "attempt": entry.result["attempt"],
        "status": entry.result["status"],
        "reason": entry.result["reason"],
        "is_counted": entry.is_counted,
        "rejections": list(entry.findings.rejections),
        "warnings": list(entry.findings.warnings),
    }


def _write_whole(content: bytes, path: Path) -> None:
    descriptor, temporary_name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(temporary_name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluate.compare",
        description="Compare every train_*.json below the folders. Results of another model, size, method, sequence "
        "length, global batch, precision or data never share a table; results that are not ok or break a rule are "
        "listed with their reason and enter no average.",
        epilog="Exits 0: a verdict was made. 3: nothing could be compared. 1: no result is ok and valid, or writing "
        "failed. 2: bad input, or no result found.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders to search, or single result files")
    parser.add_argument("--output", type=Path, help="folder for compare.{html,md,json,png} (default: the first folder)")
    parser.add_argument(
        "--by",
        choices=tuple(pairs.BY),
        help="what the two sides of a pair differ in (default: platform where there are two, else framework)",
    )
    parser.add_argument("--baseline", help="the side that the others are compared with, e.g. nvd (default: the first)")
    parser.add_argument("--band", type=_band, default=statistics.BAND, help="largest difference that does not matter, "
                        "stated before looking (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    first: Path = options.folders[0]
    output: Path = options.output or (first.parent if first.is_file() else first)
    try:
        if output.exists() and not output.is_dir():
            raise results.ResultError(f"--output: got {output}, which is a file, wanted a folder; name another")
        comparison = compare(load(options.folders), options.folders, options.by, options.baseline, options.band)
        _require_baseline(comparison, options.baseline)
    except results.ResultError as error:
        print(f"error: {tables.plain(error)}", file=sys.stderr)
        return 2
    try:
        write(comparison, output)
    except PriceError as error:
        print(f"error: {tables.plain(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {output}: cannot be written: {tables.plain(error)}; name another with --output", file=sys.stderr)
        return 1
    text = report.terminal(comparison, min(100, shutil.get_terminal_size((100, 24)).columns))
    print(tables.coloured(text) if tables.wants_colour(sys.stdout) else text)
    print(f"wrote {output}/compare.html, compare.md, compare.json and compare.png", file=sys.stderr)
    if not any(group.counted for group in comparison.groups):
        print("error: no result is ok and valid; see the reasons above, and train again", file=sys.stderr)
        return 1
    return 0 if any(judged.word != verdicts.NOT_COMPARABLE for judged in comparison.judged) else NOTHING_COMPARABLE


def _require_baseline(comparison: Comparison, baseline: str | None) -> None:
    results_found = [entry.result for group in comparison.groups for row in group.rows for entry in row.entries]
    known = sorted({pairs.BY[comparison.by](result) for result in results_found})
    if baseline is not None and baseline not in known:
        raise results.ResultError(f"--baseline: got {baseline}, wanted one of {', '.join(known)}")


def _band(text: str) -> float:
    band = float(text)
    if not 0 <= band < 1:
        raise argparse.ArgumentTypeError(f"got {text}, wanted a share from 0 to below 1, e.g. 0.03")
    return band


if __name__ == "__main__":
    sys.exit(main())
