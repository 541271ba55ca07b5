"""The state of a matrix: one record for each job, their totals, the estimated remaining time, `status.json`, the lock.

`status.json` shows the state to tools and from afar, the views in train/runner/view.py to people.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.job.job import Job, utc_now
from utils.errors import ForeignFileError
from utils.housekeeping import footprint
from utils.housekeeping.footprint import FootprintError
from utils.own_files import json_with
from utils.results.gathered import gathered
from utils.results.raw_samples import Step
from utils.results.store import write_json

WAITING, RUNNING, SKIPPED = "waiting", "running", "skipped"
"""States of a job besides the statuses of its result; skipped: it had an ok result already."""
FINISHED, FAILED, INTERRUPTED, SUBMITTED = "finished", "failed", "interrupted", "submitted"
"""States of a matrix that nobody follows any more: it came to its end (jobs may have failed), had to stop, was asked to
stop, or its jobs are in Slurm's queue (--no-wait)."""
SETUP, DATA, CHECKS, TRAINING = "setup", "data", "checks", "training"
VALIDATION, COMPARISON, DONE = "validation", "comparison", "done"
"""Phases of a matrix, in their order. One that failed or was interrupted keeps the phase in which this happened."""
STATUS_SCHEMA_VERSION = 1
WARNING = "warning: "
STATUS_EVERY_SECONDS = 2.0
NAME = "status.json"
is_status = json_with("schema_version", "state", "jobs")
"""Recogniser of a status.json of any version."""


@dataclass
class JobState:
    """One job of the matrix."""

    number: int
    """Position in the matrix, from 1."""
    job: Job
    state: str = WAITING
    reason: str | None = None
    log: Path | None = None
    step: Step | None = None
    started: float | None = None
    """time.monotonic(), as all times here."""
    ended: float | None = None
    result: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        """Framework, model and run."""
        return f"{self.job.framework} {self.job.model} run {self.job.run}"

    @property
    def is_done(self) -> bool:
        """True if the job neither waits nor runs."""
        return self.state not in (WAITING, RUNNING)

    @property
    def is_good(self) -> bool:
        """True if the job has an ok result."""
        return self.state in ("ok", SKIPPED)

    @property
    def elapsed_seconds(self) -> float | None:
        """Seconds since its start, or from start to end; None before the start."""
        if self.started is None:
            return None
        # monotonic: a clock that is set must not change a duration
        return (self.ended or time.monotonic()) - self.started

    def take_step(self, step: Step, line: str = "") -> None:
        """Note a finished step; `line` is the one that reported it."""
        self.step = step

    @property
    def remaining_seconds(self) -> float | None:
        """Remaining steps times the average time of a step so far; None before the second and at a profiled step."""
        if self.step is None or self.step.number < 2 or self.step.average_seconds is None:
            return None
        return (self.step.total - self.step.number) * self.step.average_seconds

    @property
    def whole_seconds(self) -> float | None:
        """Estimated seconds of the whole job; None while there is no estimate, and for a failed or skipped job."""
        if self.is_done:
            return self.elapsed_seconds if self.state == "ok" else None
        if self.remaining_seconds is None or self.elapsed_seconds is None:
            return None
        return self.elapsed_seconds + self.remaining_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the job's part of status.json."""
        status: dict[str, Any] = {
            "number": self.number,
            "framework": self.job.framework,
            "model": self.job.model,
            "run": self.job.run,
            "state": self.state,
            "reason": self.reason,
            "step": None,
            "total_steps": self.job.config.train_iterations,
            "step_time_seconds": None,
            "loss": None,
            "elapsed_seconds": _rounded(self.elapsed_seconds),
            "remaining_seconds": _rounded(self.remaining_seconds),
            "result": str(self.job.result_path),
            "log": str(self.log) if self.log else None,
        }
        if self.step is not None:
            status["step"], status["step_time_seconds"] = self.step.number, self.step.seconds
            if not math.isnan(self.step.loss):  # JSON has no NaN
                status["loss"] = self.step.loss
        return status


@dataclass
class MatrixState:
    """All jobs of a matrix, in their order."""

    jobs: list[JobState]
    state: str = RUNNING
    phase: str = SETUP
    pause: str | None = None
    """Reason for a pause between two jobs."""
    report: Path | None = None
    """The compare.html of the matrix, once it is written."""
    warnings: list[tuple[str, str]] = field(default_factory=list)
    """Title of a job and a warning that it printed, without its first word."""
    ended: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why no further run follows, by framework and model, for those whose last run has ended."""
    started: float = field(default_factory=time.monotonic)
    started_utc: str = field(default_factory=utc_now)

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> MatrixState:
        """Return the state of a matrix before its first job."""
        return cls([JobState(number, job) for number, job in enumerate(jobs, 1)])

    @property
    def next_job(self) -> JobState | None:
        """The first job that waits."""
        return next((job for job in self.jobs if job.state == WAITING), None)

    @property
    def current(self) -> JobState | None:
        """The job that runs now."""
        return next((job for job in self.jobs if job.state == RUNNING), None)

    @property
    def failed(self) -> int:
        """Number of jobs that ended without an ok result."""
        return sum(job.is_done and not job.is_good for job in self.jobs)

    @property
    def counts(self) -> str:
        """Number of jobs and of failed jobs, in words."""
        return f"{self._jobs}, {self.failed} failed"

    @property
    def good(self) -> str:
        """Share of the jobs that have an ok result, in words."""
        good = sum(job.is_good for job in self.jobs)
        verb = "has" if len(self.jobs) == 1 else "have"
        return f"{good} of {self._jobs} {verb} an ok result"

    @property
    def unrecorded_warnings(self) -> list[str]:
        """Warnings that are in the result of no job, each kind once with the number of jobs."""
        recorded = {job.title: job.result["warnings"] for job in self.jobs if job.result is not None}
        unrecorded = []
        for title, text in self.warnings:
            if text not in recorded.get(title, ()):
                unrecorded.append((title, text))
        return gathered(unrecorded)

    @property
    def done(self) -> str:
        """Share of the jobs that have ended, in words."""
        return f"{sum(job.is_done for job in self.jobs)} of {self._jobs}"

    @property
    def most(self) -> int:
        """Number of jobs if RUNS=auto adds every run that it may."""
        return len(self.jobs) + sum(count for _, count in self._possible())

    @property
    def total(self) -> str:
        """Number of jobs in words; a range while RUNS=auto has not decided."""
        return f"{len(self.jobs)}" if self.most == len(self.jobs) else f"{len(self.jobs)} to {self.most}"

    @property
    def _jobs(self) -> str:
        return f"{len(self.jobs)} job{'' if len(self.jobs) == 1 else 's'}"

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start of the matrix."""
        return time.monotonic() - self.started

    def remaining_seconds(self) -> tuple[float, float] | None:
        """Return the least and the most remaining seconds, from jobs of the same kind if there are any, else all.

        They differ while RUNS=auto has not decided how many runs a job gets. None until there is an estimate for one
        job. Cooldown is included.
        """
        known: dict[tuple[str, str], float] = {}
        for job in self.jobs:
            if job.whole_seconds:
                known[job.job.kind] = job.whole_seconds
        if not known:
            return None
        # a job of a kind that has not run yet is assumed to take as long as the others
        average = statistics.fmean(known.values())
        least = possible = 0.0
        for job in self.jobs:
            if job.is_done:
                continue
            least += max(0.0, known.get(job.job.kind, average) - (job.elapsed_seconds or 0.0))
            if job.state == WAITING:
                least += job.job.config.cooldown_seconds
        for last, count in self._possible():
            possible += count * (known.get(last.kind, average) + last.config.cooldown_seconds)
        return least, least + possible

    def _possible(self) -> list[tuple[Job, int]]:
        """Return a job of each kind whose number of runs is open, and the number of runs that may be added."""
        # the number of runs is open until the rule has ended a kind
        last = {job.job.kind: job.job for job in self.jobs if job.job.kind not in self.ended}
        return [(job, job.rule.most - job.run) for job in last.values()]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of status.json."""
        least, most = self.remaining_seconds() or (None, None)
        return {
            "schema_version": STATUS_SCHEMA_VERSION,
            "state": self.state,
            "phase": self.phase,
            "pause": self.pause,
            "host": platform.node(),
            "process_id": os.getpid(),
            "started_utc": self.started_utc,
            "updated_utc": utc_now(),
            "elapsed_seconds": _rounded(self.elapsed_seconds),
            "remaining_seconds": _rounded(least),
            "most_remaining_seconds": _rounded(most),
            "jobs_total": len(self.jobs),
            "most_jobs_total": self.most,
            "jobs_done": sum(job.is_done for job in self.jobs),
            "jobs_failed": self.failed,
            "report": str(self.report) if self.report else None,
            "warnings": gathered(self.warnings),
            "runs_ended": {" ".join(kind): why for kind, why in self.ended.items()},
            "jobs": [job.as_dict() for job in self.jobs],
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


class StatusFile:
    """The file, replaced atomically; if it cannot be written, one warning is printed and the matrix goes on."""

    def __init__(self, folder: Path, state: MatrixState) -> None:
        self.matrix = state
        self.folder = folder
        self._written_at = 0.0
        self._is_broken = False

    def enter(self, phase: str) -> None:
        """Note that a phase begins."""
        self.matrix.phase = phase
        self.write()

    def end(self, state: str) -> None:
        """Note that the matrix has ended, unless that is noted already."""
        if self.matrix.state != RUNNING:
            return
        self.matrix.state, self.matrix.pause = state, None
        if state == FINISHED:
            self.matrix.phase = DONE
        self.write()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Note a failure if the block ends with an error."""
        # also an interrupt: whoever reads the file must not wait for this process
        try:
            yield
        except BaseException:
            self.end(FAILED)
            raise

    def write_sometimes(self) -> None:
        """Write it if the last write is STATUS_EVERY_SECONDS ago."""
        if time.monotonic() - self._written_at >= STATUS_EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        """Write it now, unless its folder was deleted."""
        # a folder that was deleted or renamed must not be made anew by its status
        self._written_at = time.monotonic()
        if not self.folder.is_dir():
            return
        try:
            write_json(self.matrix.as_dict(), self.folder / NAME, is_ours=is_status)
        except (OSError, ForeignFileError) as error:
            # it is written every two seconds, and one warning is enough
            if not self._is_broken:
                print(f"warning: {self.folder / NAME} is out of date: {error}", file=sys.stderr)
            self._is_broken = True


@contextmanager
def lock(folder: Path) -> Iterator[Callable[[], bool]]:
    """Create, mark and lock `folder` as OUTPUT_DIR until the block ends or the process dies.

    Yields a function that returns False once `folder` is not that folder any more: deleted, renamed or replaced.
    Programs that the block starts do not inherit the lock (flock). Raises FootprintError if another process holds it,
    and as `footprint.mark`.
    """
    footprint.mark(folder, footprint.OUTPUT)
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(footprint.opened(folder))
            descriptor = stack.enter_context(footprint.locked(directory, str(folder)))
            # for a person who wants to know who holds the lock
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"tprimat process {os.getpid()} on {platform.node()}\n".encode(), 0)
        except OSError as error:
            where = f"{folder}/{footprint.LOCK}"
            raise FootprintError(f"{where}: cannot be written ({error.strerror}); free disk space") from error

        def is_in_place() -> bool:
            with suppress(OSError):
                return os.path.samestat(os.fstat(descriptor), (folder / footprint.LOCK).lstat())
            return False

        yield is_in_place
