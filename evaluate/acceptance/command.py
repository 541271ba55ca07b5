"""The acceptance test behind `evaluate.compare --against`: one line a job, and an exit code.

With `--output DIR` the same decisions are written to DIR/acceptance.json: tokens/s/GPU and percent, null where unknown.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from evaluate.acceptance.deciding import (
    FAIL,
    PASS,
    UNKNOWN,
    Decision,
    Interval,
    against_job,
    against_published,
    missing,
    without_counterpart,
)
from evaluate.acceptance.jobs import Job, jobs
from evaluate.bundle import as_input
from evaluate.checks.recorded import machine_of
from evaluate.inputs.discover import require_folder
from evaluate.metrics.defaults import PUBLISHED
from evaluate.report.blocks import Lines
from evaluate.report.groups import without_copies
from evaluate.report.renderers import UNBROKEN, terminal
from evaluate.report.tables import plain
from evaluate.verdict.odd_runs import without_odd_runs
from utils.errors import counted
from utils.own_files import json_with, require_ours
from utils.results import store
from utils.results.store import ResultError

ACCEPTANCE_VERSION = 1
FILE = "acceptance.json"
FAILED, NOT_KNOWN = 1, 3
"""Exit codes: at least one job fails; none fails, and of at least one it is unknown."""
is_ours = json_with("acceptance_version", "decisions")


def run(options: argparse.Namespace) -> int:
    """Test the results in `options.folders` against `options.against`; return the exit code.

    Raises ResultError for bad input and for an output that cannot be written, ForeignFileError for a file at its place
    that this suite did not write.
    """
    place = options.output / FILE if options.output else None
    if place is not None:
        # before the work, which may take minutes
        require_folder(options.output)
        require_ours(is_ours, place)
    measured, unreadable = read_jobs(options.folders)
    if options.against == PUBLISHED:
        decisions = [against_published(job, options.at_least) for job in measured]
    else:
        path = Path(options.against)
        decisions = list(against_jobs(measured, _baseline(path), path, options.at_least))
    code = shown(decisions, options.against, options.at_least, unreadable)
    if place is not None:
        content = {
            "acceptance_version": ACCEPTANCE_VERSION,
            "against": options.against,
            "at_least_percent": options.at_least,
            "decisions": [asdict(decision) for decision in decisions],
        }
        try:
            store.write_json(content, place, is_ours=is_ours)
        except OSError as error:
            raise ResultError(f"{place}: cannot be written: {error}") from error
        print(f"wrote {plain(place)}", file=sys.stderr)
    return code


def shown(decisions: list[Decision], against: str, least: float, unreadable: Sequence[tuple[Path, str]]) -> int:
    """Sort the decisions, failed ones first, print them and a summary; return the exit code."""
    for path, reason in unreadable:
        print(f"warning: {plain(path)}: left out, because it cannot be read: {plain(reason)}", file=sys.stderr)
    # what needs a reader's attention comes first
    decisions.sort(key=lambda one: (FAIL, UNKNOWN, PASS).index(one.decision))
    counts = Counter(one.decision for one in decisions)
    words = ", ".join(f"{counts[word]} {word}" for word in (PASS, FAIL, UNKNOWN) if counts[word])
    wanted = f"wanted at least {least:g} % of {against}, with the whole 95 % interval"
    summary = f"{counted(len(decisions), 'job')}: {words}; {wanted}"
    print(terminal([Lines([*map(_line, decisions), summary])], UNBROKEN))
    if counts[FAIL]:
        return FAILED
    return NOT_KNOWN if counts[UNKNOWN] or unreadable else 0


def _baseline(path: Path) -> list[Job]:
    """Return the jobs of a baseline of one's own; raise ResultError for one that is missing, damaged or empty."""
    try:
        found, unreadable = read_jobs([path], by_machine=False)
    except ResultError as error:
        wanted = f"wanted {PUBLISHED}, or a folder or an archive of results"
        raise ResultError(f"--against: {error}; {wanted}") from error
    if not found:
        raise ResultError(f"--against: {path}: no result can be read: {unreadable[0][1]}")
    return found


def against_jobs(
    measured: Sequence[Job], baseline: Sequence[Job], path: Path, least: float, empty: str = UNKNOWN
) -> Iterator[Decision]:
    """Yield the decision on each job against that of a baseline, which came from `path`, and on those not measured.

    `empty` is the word for a job of which the baseline has no valid run.
    """
    by_key = {job.key: job for job in baseline}
    not_measured = dict(by_key)
    for job in measured:
        not_measured.pop(job.key, None)
    for job in measured:
        # the nearest that nobody measured is most likely the one that was meant
        other = by_key.get(job.key) or _nearest(job, list(not_measured.values()) or baseline)
        if other is None:
            yield without_counterpart(job, str(path))
        else:
            not_measured.pop(other.key, None)
            yield against_job(job, other, _source(path, other), least, empty)
    for other in not_measured.values():
        yield missing(other, _source(path, other))


def _nearest(job: Job, baseline: Sequence[Job]) -> Job | None:
    """Return the job of the same framework, model and method that differs in the fewest properties."""
    alike = [other for other in baseline if other.key[:3] == job.key[:3]]
    return min(alike, key=lambda other: len(job.differences(other)), default=None)


def _source(path: Path, job: Job) -> str:
    source = f"{path}, {counted(len(job.counted), 'run')}"
    machines = ", ".join(sorted({machine_of(result) for result in job.counted}))
    return f"{source} on {machines}" if machines else source


def read_jobs(paths: Sequence[Path], *, by_machine: bool = True) -> tuple[list[Job], tuple[tuple[Path, str], ...]]:
    """Return the jobs below paths, and the files that cannot be read; raise ResultError if nothing is found."""
    loaded = as_input.load(paths)
    entries = without_odd_runs(without_copies(loaded.entries)[0], "machine")
    return jobs(entries, by_machine=by_machine), loaded.unreadable


def _line(found: Decision) -> str:
    """Return one line: word, job, measured tokens/s/GPU, share and baseline with its source, and the reason."""
    job = f"{found.job} on {found.machine}" if found.machine else found.job
    measured = "not measured"
    if found.tokens_per_second_per_gpu:
        rate = _with_interval(found.tokens_per_second_per_gpu, 0)
        measured = f"{rate} tokens/s/GPU, {counted(found.runs, 'run')}"
    baseline = "no figure"
    if found.baseline_tokens_per_second_per_gpu:
        baseline = f"{found.baseline_tokens_per_second_per_gpu:,.0f}"
    if found.share_percent:
        baseline = f"{_with_interval(found.share_percent, 1)} % of {baseline}"
    text = f"{found.decision:<7}  {job}: {measured}; {baseline} ({found.baseline_source})"
    return f"{text}; {found.reason}" if found.reason else text


def _with_interval(figure: Interval, decimals: int) -> str:
    value, interval = f"{figure.value:,.{decimals}f}", "no interval"
    if figure.low is not None and figure.high is not None:
        interval = f"{figure.low:,.{decimals}f} to {figure.high:,.{decimals}f}"
    return f"{value} ({interval})"
