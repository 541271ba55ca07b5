"""The acceptance test behind `evaluate.compare --against`: one line a job, and an exit code.

With `--output DIR` the same decisions are written to DIR/acceptance.json.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluate.acceptance.deciding import (
    FAIL,
    PASS,
    UNKNOWN,
    Decision,
    against_job,
    against_published,
    missing,
    without_counterpart,
)
from evaluate.acceptance.jobs import Job, jobs
from evaluate.bundle import as_input
from evaluate.checks.recorded import machine_of
from evaluate.metrics.published import PUBLISHED
from evaluate.report.groups import without_copies
from evaluate.report.tables import plain
from evaluate.verdict.odd_runs import without_odd_runs
from utils.errors import ForeignFileError
from utils.own_files import json_with, require_ours
from utils.results import store
from utils.results.store import ResultError

ACCEPTANCE_VERSION = 1
FILE = "acceptance.json"
FAILED, NOT_KNOWN = 1, 3
"""Exit codes: at least one job fails; none fails, and of at least one it is unknown."""
is_ours = json_with("acceptance_version", "decisions")


def run(options: argparse.Namespace) -> int:
    """Test the results in `options.folders` against `options.against`; return the exit code."""
    try:
        place = _place(options.output)
        measured, unreadable = read_jobs(options.folders)
        decisions = decide(measured, options.against, options.at_least)
    except (ResultError, ForeignFileError) as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return 2
    code = shown(decisions, options.against, options.at_least, unreadable)
    if place is not None:
        try:
            store.write_json(as_json(decisions, options.against, options.at_least), place, is_ours=is_ours)
        except (OSError, ForeignFileError) as error:
            print(f"error: {plain(place)}: cannot be written: {plain(error)}", file=sys.stderr)
            return 2
        print(f"wrote {plain(place)}", file=sys.stderr)
    return code


def shown(decisions: Sequence[Decision], against: str, least: float, unreadable: Sequence[tuple[Path, str]]) -> int:
    """Print the decisions, failed ones first, and a summary; return the exit code."""
    for path, reason in unreadable:
        print(f"warning: {plain(path)}: left out, because it cannot be read: {plain(reason)}", file=sys.stderr)
    for decision in sorted(decisions, key=lambda one: (FAIL, UNKNOWN, PASS).index(one.word)):
        print(plain(line(decision)))
    print(_summary(decisions, against, least))
    words = {decision.word for decision in decisions} | ({UNKNOWN} if unreadable else set())
    return FAILED if FAIL in words else NOT_KNOWN if UNKNOWN in words else 0


def decide(measured: Sequence[Job], against: str, least: float) -> list[Decision]:
    """Return the decision on each job, failed ones first; `least` is the least share of the baseline in percent.

    Raises ResultError for a baseline that is missing, damaged or empty.
    """
    if against == PUBLISHED:
        found = [against_published(job, least) for job in measured]
    else:
        found = list(_against_own(measured, Path(against), least))
    return sorted(found, key=lambda one: (FAIL, UNKNOWN, PASS).index(one.word))


def _against_own(measured: Sequence[Job], path: Path, least: float) -> Iterator[Decision]:
    try:
        baseline, unreadable = read_jobs([path], by_machine=False)
    except ResultError as error:
        wanted = f"wanted {PUBLISHED}, or a folder or an archive of results"
        raise ResultError(f"--against: {error}; {wanted}") from error
    if not baseline:
        raise ResultError(f"--against: {path}: no result can be read: {unreadable[0][1]}")
    return against_jobs(measured, baseline, path, least)


def against_jobs(measured: Sequence[Job], baseline: Sequence[Job], path: Path, least: float) -> Iterator[Decision]:
    """Yield the decision on each job against that of a baseline, which came from `path`, and on those not measured."""
    by_key = {job.key: job for job in baseline}
    open_jobs = {key: job for key, job in by_key.items() if key not in {job.key for job in measured}}
    for job in measured:
        other = by_key.get(job.key) or _nearest(job, list(open_jobs.values()) or baseline)
        if other is None:
            yield without_counterpart(job, str(path))
        else:
            open_jobs.pop(other.key, None)
            yield against_job(job, other, _source(path, other), least)
    for other in open_jobs.values():
        yield missing(other, _source(path, other))


def _nearest(job: Job, baseline: Sequence[Job]) -> Job | None:
    """Return the job of the same framework, model and method that differs in the fewest properties."""
    alike = [one for one in baseline if (one.key.model, one.key.method, one.key.framework) == job.key[:3]]
    return min(alike, key=lambda one: len(job.differences(one)), default=None)


def _source(path: Path, job: Job) -> str:
    machines = sorted({machine_of(result) for result in job.counted})
    count = len(job.counted)
    return f"{path}, {count} run{'' if count == 1 else 's'}" + (f" on {', '.join(machines)}" if machines else "")


def read_jobs(paths: Sequence[Path], *, by_machine: bool = True) -> tuple[list[Job], tuple[tuple[Path, str], ...]]:
    """Return the jobs below paths, and the files that cannot be read; raise ResultError if nothing is found."""
    loaded = as_input.load(paths)
    unique, _ = without_copies(loaded.entries)
    return jobs(without_odd_runs(unique, "machine"), by_machine=by_machine), loaded.unreadable


def _place(output: Path | None) -> Path | None:
    if output is None:
        return None
    store.require_folder(output)
    require_ours(is_ours, output / FILE)
    return output / FILE


def line(found: Decision) -> str:
    """Return one line: word, job, measured tokens/s/GPU, share and baseline with its source, and the reason."""
    machine = f" on {found.machine}" if found.machine else ""
    text = f"{found.word:<7}  {found.name}{machine}: "
    runs = f"{found.runs} run{'' if found.runs == 1 else 's'}"
    if found.measured:
        text += f"{_with_interval(found.measured, 0)} tokens/s/GPU, {runs}; "
    else:
        text += "not measured; "
    if found.share:
        text += f"{_with_interval(found.share, 1)} % of "
    text += f"{found.baseline:,.0f} ({found.source})" if found.baseline else f"no figure ({found.source})"
    return f"{text}; {found.reason}" if found.reason else text


def _with_interval(figure: Any, decimals: int) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:,.{decimals}f} (no interval)"
    return f"{figure.value:,.{decimals}f} ({figure.low:,.{decimals}f} to {figure.high:,.{decimals}f})"


def _summary(decisions: Sequence[Decision], against: str, least: float) -> str:
    counts = Counter(decision.word for decision in decisions)
    words = ", ".join(f"{counts[word]} {word}" for word in (PASS, FAIL, UNKNOWN) if counts[word])
    total = f"{len(decisions)} job{'' if len(decisions) == 1 else 's'}"
    return plain(f"{total}: {words}; wanted at least {least:g} % of {against}, with the whole 95 % interval")


def as_json(decisions: Sequence[Decision], against: str, least: float) -> dict[str, Any]:
    """Return the content of acceptance.json: tokens/s/GPU and percent, null where unknown."""
    return {
        "acceptance_version": ACCEPTANCE_VERSION,
        "against": against,
        "at_least_percent": least,
        "decisions": [_named(asdict(decision)) for decision in decisions],
    }


_NAMES = {
    "word": "decision",
    "name": "job",
    "measured": "tokens_per_second_per_gpu",
    "baseline": "baseline_tokens_per_second_per_gpu",
    "source": "baseline_source",
    "share": "share_percent",
}


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(key, key): value for key, value in fields.items()}
