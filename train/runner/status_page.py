"""`status.html`: the content of status.json for people, one file without scripts that a browser reloads by itself.

It stops reloading when the matrix has ended. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from train.runner.state import (
    CHECKS,
    COMPARISON,
    DATA,
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    SETUP,
    SKIPPED,
    SUBMITTED,
    TRAINING,
    VALIDATION,
    WAITING,
)
from train.runner.times import between, duration, times
from utils.housekeeping.inventory import STATUS_TITLE
from utils.settings.profiling import PROFILED

REFRESH_SECONDS = 5
PHASES = {
    SETUP: "installing packages",
    DATA: "preparing the data",
    CHECKS: "checking the data",
    TRAINING: "training",
    VALIDATION: "validating the results",
    COMPARISON: "comparing the results",
    DONE: "done",
}
"""Each phase in words, in their order."""
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2024; --muted: #57606a; --rule: #d5dae0; --bar: #0072b2;
  --bad: #a8201a; --fine: #33691e; --warn: #7a5200; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --paper: #12161a; --ink: #e4e8ec; --muted: #9aa5b1; --rule: #333b44;
  --bar: #58b4ec; --bad: #ff8a80; --fine: #9ccc65; --warn: #f0c060; --link: #6cb6ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 0.9375rem/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0; }
p { margin: 0.3rem 0; }
a { color: var(--link); }
ul { list-style: none; margin: 1rem 0; padding: 0; }
li { padding: 0.5rem 0; border-top: 1px solid var(--rule); display: grid; gap: 0 0.75rem;
  grid-template-columns: minmax(9rem, 1fr) minmax(5rem, 2fr) minmax(12rem, 2fr); }
progress { width: 100%; height: 0.6rem; margin: 0.45rem 0; appearance: none; border: 0; background: var(--rule); }
progress::-webkit-progress-bar { background: var(--rule); }
progress::-webkit-progress-value { background: var(--bar); }
progress::-moz-progress-bar { background: var(--bar); }
small, .muted { color: var(--muted); }
small { grid-column: 1 / -1; }
.bad { color: var(--bad); } .fine { color: var(--fine); } .warn { color: var(--warn); }
@media (max-width: 36rem) { li { grid-template-columns: 1fr; } progress { margin: 0.2rem 0; } }
"""


def page(status: Mapping[str, Any], folder: Path) -> str:
    """Return the page of the content of a status.json; links are relative to `folder`, where the page will be."""
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">\n' if status["state"] == RUNNING else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{STATUS_TITLE}</title>\n{refresh}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{''.join(_header(status, folder))}<ul>\n{''.join(map(_job, status['jobs']))}</ul>\n"
        f"{''.join(_footer(status))}</main>\n</body>\n</html>\n"
    )


def _header(status: Mapping[str, Any], folder: Path) -> Iterator[str]:
    yield f"<h1>{STATUS_TITLE}: {escape(_what(status))}</h1>\n"
    yield _bar(status["jobs_done"], status["jobs_total"], "jobs that have ended")
    most = f" to {status['most_jobs_total']}" if status["most_jobs_total"] > status["jobs_total"] else ""
    jobs = f"{status['jobs_done']} of {status['jobs_total']}{most} job{'' if status['jobs_total'] == 1 else 's'}"
    failed = f', <span class="bad">{status["jobs_failed"]} failed</span>' if status["jobs_failed"] else ""
    yield f"<p>{jobs}{failed}; {_times(status)}</p>\n"
    yield from (f'<p class="warn">warning: {escape(line)}</p>\n' for line in status["warnings"])
    if status["report"]:
        link = escape(os.path.relpath(status["report"], folder), quote=True)
        yield f'<p><a href="{link}">The report of the comparison</a></p>\n'


def _what(status: Mapping[str, Any]) -> str:
    phase = PHASES.get(status["phase"], status["phase"])
    if status["state"] == INTERRUPTED:
        return f"interrupted while {phase}"
    if status["state"] == FAILED:
        return f"failed while {phase}"
    if status["state"] == SUBMITTED:
        return "jobs submitted to Slurm, which nobody follows now"
    return f"{phase}, {status['pause']}" if status["pause"] else phase


def _times(status: Mapping[str, Any]) -> str:
    least, most = status["remaining_seconds"], status["most_remaining_seconds"]
    if status["state"] != RUNNING:
        return f"{duration(status['elapsed_seconds'])} elapsed"
    return times(status["elapsed_seconds"], None if least is None else (least, most))


def _job(job: Mapping[str, Any]) -> str:
    title = escape(f"{job['number']}. {job['framework']} {job['model']} run {job['run']}")
    is_done = job["state"] not in (WAITING, RUNNING)
    steps = job["total_steps"] if job["state"] in ("ok", SKIPPED) else job["step"] or 0
    kind = {WAITING: "muted", RUNNING: "", "ok": "fine", SKIPPED: "fine"}.get(job["state"], "bad")
    reason = f"<small>{escape(job['reason'].strip().splitlines()[0])}</small>" if job["reason"] else ""
    told = escape(job["state"] + (_of_done(job) if is_done else _of_running(job)))
    bar = _bar(steps, job["total_steps"], "steps")
    return f'<li><span>{title}</span>{bar}<span class="{kind}">{told}</span>{reason}</li>\n'


def _of_running(job: Mapping[str, Any]) -> str:
    if job["state"] == WAITING:
        return ""
    if job["step"] is None:
        return f", before its first step, {duration(job['elapsed_seconds'])}"
    loss = "" if job["loss"] is None else f", loss {job['loss']:.3f}"
    left = "" if job["remaining_seconds"] is None else f", {between(*[job['remaining_seconds']] * 2)} left"
    seconds = job["step_time_seconds"]
    time = PROFILED if seconds is None else f"{seconds:.3f} s"
    return f", step {job['step']} of {job['total_steps']}, {time}{loss}{left}"


def _of_done(job: Mapping[str, Any]) -> str:
    return "" if job["state"] == SKIPPED else f", took {duration(job['elapsed_seconds'])}"


def _bar(value: int, total: int, what: str) -> str:
    return f'<progress value="{value}" max="{max(1, total)}" aria-label="{what}">{value} of {total}</progress>\n'


def _footer(status: Mapping[str, Any]) -> Iterator[str]:
    yield f'<p class="muted">Started {status["started_utc"]} on {escape(status["host"])}, process '
    yield f"{status['process_id']}; last change of this page {status['updated_utc']}."
    if status["state"] == RUNNING:
        yield f" The browser loads it again every {REFRESH_SECONDS} seconds; if the last change is minutes ago, the "
        yield "run was killed."
    yield "</p>\n"
