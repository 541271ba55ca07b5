"""The few lines that shell/run_train.sh shows of a comparison and a validation; the whole text goes into a log.

The verdict takes at most five lines, the last of which is the path of the report.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from evaluate.checks.entries import Entry, job_name
from evaluate.report.blocks import Value
from evaluate.report.comparison import Comparison
from evaluate.report.document import card, doubts, short_opening
from evaluate.report.groups import SPEED, Row, mean_of
from evaluate.report.tables import plain, shown_on, wrapped
from evaluate.verdict.sentences import Judged
from utils.results.gathered import gathered
from utils.results.store import ResultError

LINES = 5
NARROWEST = 60
"""Columns for which a line is shortened; a narrower terminal wraps it."""


def show(options: argparse.Namespace, whole: str, brief: str) -> None:
    """Print one of the texts, and append the whole one to the log if one is named; raise ResultError if that fails."""
    if options.log is not None:
        try:
            with options.log.open("a", encoding="utf8") as file:
                file.write(shown_on(file, whole) + "\n")
        except OSError as error:
            raise ResultError(f"--log {options.log}: cannot be written: {error.strerror}; name another file") from error
    text = brief if options.brief else whole
    if text:
        print(shown_on(sys.stdout, text))


def warning_lines(entries: Sequence[Entry], width: int) -> list[str]:
    """Return the warnings of all results, each kind once with the number of jobs."""
    warnings = []
    for entry in entries:
        job = f"{job_name(entry.result, with_host=True)} {entry.result['run']}"
        warnings += [(job, plain(line)) for line in entry.findings.warnings]
    return [textwrap.fill(f"warning: {line}", width, subsequent_indent="  ") for line in gathered(warnings)]


def verdict_lines(comparison: Comparison, report: Path, width: int) -> list[str]:
    """Return the verdict in at most LINES lines of about `width` characters, the path of `report` last."""
    room, columns = LINES - 1, max(NARROWEST, width)
    if not comparison.judged:
        lines = _without_pair(comparison, room, columns)
    elif len(comparison.judged) == 1:
        lines = _of_one(comparison.judged[0], room, columns)
    else:
        # whole: no side loses its name
        return [*_of_several(comparison, room), f"report: {plain(report)}"]
    return [*("".join(wrapped(line, 1, columns)) for line in lines), f"report: {plain(report)}"]


def _without_pair(comparison: Comparison, room: int, columns: int) -> list[str]:
    lines = wrapped(comparison.headline, 2, columns)
    rows = [row for group in comparison.groups for row in group.rows]
    # one of the lines is the count of those left out
    room -= len(lines)
    if len(rows) <= room:
        return lines + list(map(_throughput, rows))
    shown = rows[: room - 1]
    return [*lines, *map(_throughput, shown), f"and {len(rows) - len(shown)} more systems"]


def _throughput(row: Row) -> str:
    name = plain(f"{row.key.platform}/{row.key.framework} {row.device}")
    name += f": {len(row.counted)} of {len(row.entries)} runs counted"
    speed = row.figures[SPEED]
    return f"{name}, {Value(mean_of(speed)).text} tokens/s/GPU" if speed else name


def _of_one(judged: Judged, room: int, columns: int) -> list[str]:
    shown = card(judged)
    support = f"weakened: {'; '.join(shown.doubts)}" if shown.doubts else "; ".join(shown.support)
    lines = wrapped(shown.opening, room - 1, columns)
    below = [plain(text) for text in (shown.rest, support) if text]
    return [*lines, *below[-(room - len(lines)) :]]


def _of_several(comparison: Comparison, room: int) -> list[str]:
    judged = comparison.judged
    lines = [f"{ranking.in_words}: {ranking.work}" for ranking in comparison.rankings][: room - 1]
    shown = judged[: room - 1 - len(lines)]
    has_methods = len({verdict.pair.method for verdict in judged}) > 1
    for verdict in shown:
        line = short_opening(verdict)
        if has_methods:
            line += f", method {verdict.pair.method}"
        lines.append(plain(line))
    summary = comparison.tally
    if len(shown) < len(judged):
        summary += f"; {len(judged) - len(shown)} of them only in the report"
    weakened = list(filter(doubts, judged))
    return [*lines, f"{summary}; {len(weakened)} of {len(judged)} weakened, see the report"]
