"""One job of the matrix: started through its script, followed line by line, accounted for if its launcher cannot."""

from __future__ import annotations

import shlex
import time
from collections import deque
from pathlib import Path
from signal import Signals

from train.job import processes
from train.job.child import Child
from train.job.job import log_path, utc_now
from train.job.outcome import Attempt, leave
from train.job.reserve import remove_leftovers
from train.job.supervise import GRACE_SECONDS
from train.runner import plan
from train.runner.state import RUNNING, SKIPPED, JobState, StatusFile
from train.runner.view import View
from utils.results import store
from utils.results.step_line import parse_step

POLL_SECONDS = 0.2
LAUNCHER_GRACE_SECONDS = 45.0
"""A launcher that was asked to stop ends its ranks, by force if need be, and writes a result."""
LAST_LINES = 6
WARNING = "warning: "


def run_job(
    matrix: plan.Matrix, state: JobState, digest: str, view: View, status: StatusFile, stop: processes.StopRequest
) -> None:
    """Run one job, unless an ok result of it stands, and note in `state` how it ended; a true result is left behind.

    `digest` is the hash of the data.
    """
    job = state.job
    attempt = Attempt(job, job.identity(digest), shlex.join(plan.command(matrix, job)), utc_now())
    state.started = time.monotonic()
    if not matrix.config.force and plan.has_result(job, attempt.identity):
        remove_leftovers(job.result_path)  # of a launcher that was killed when its trainer had just written the result
        conclude(state, SKIPPED)
    else:
        state.state = RUNNING
        view.job_started(state)
        before, output = stamp(job.result_path), Output(state)
        child = Child(plan.command(matrix, job), output.take, plan.environment(matrix))
        exit_code = _follow(child, output, view, status, stop)
        after = stamp(job.result_path)
        try:
            if exit_code != 0 and after in (None, before):
                leave_failure(attempt, _reason(exit_code, output, stop))
            conclude(state, SKIPPED if exit_code == 0 and after == before else None)
        except (OSError, store.ResultError) as error:  # no room even for a failure; the next job may find some
            _conclude_without_result(state, f"no result could be written: {error}; " + "; ".join(output.last_lines))
    view.job_ended(state)
    status.write()


class Output:
    """What a launcher prints, as far as the matrix wants to know it."""

    def __init__(self, state: JobState) -> None:
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.warnings: deque[str] = deque()
        """What the pre-flight of the job has said and nobody has shown yet."""
        self._state = state

    @property
    def where(self) -> str:
        """How far the job had come."""
        step = self._state.step
        return f"after step {step.number} of {step.total}" if step else "before the first step was finished"

    def take(self, line: str) -> None:
        """Take one line, with its newline."""
        step = parse_step(line)
        if step is not None:
            self._state.take_step(step)
        elif line.strip():
            self.last_lines.append(line.rstrip())
            if line.startswith(WARNING) and self._state.step is None:
                self.warnings.append(line.rstrip())


def _follow(child: Child, output: Output, view: View, status: StatusFile, stop: processes.StopRequest) -> int:
    """Wait for a launcher, showing where it is; pass a request to stop on to it. Returns its exit code."""
    asked_at = None
    while not child.has_ended():
        if stop.signal is not None and asked_at is None:
            child.process.send_signal(stop.signal)
            asked_at = time.monotonic()
        if asked_at is not None and time.monotonic() - asked_at > LAUNCHER_GRACE_SECONDS:
            break
        _show_warnings(output, view)
        view.refresh()
        status.write_sometimes()
        time.sleep(POLL_SECONDS)
    exit_code = child.close(GRACE_SECONDS)
    _show_warnings(output, view)
    return exit_code


def _show_warnings(output: Output, view: View) -> None:
    while output.warnings:
        view.say(f"    {output.warnings.popleft()}")


def leave_failure(attempt: Attempt, reason: str, status: str = "failed") -> None:
    """Write the result of a job whose launcher did not; one of an earlier attempt is kept under its number."""
    path = attempt.job.result_path
    remove_leftovers(path)
    number = store.set_aside(path)
    while log_path(attempt.job.numbered(number + 1)).exists():
        number += 1
    job = attempt.job.numbered(number)
    leave(Attempt(job, attempt.identity, attempt.command, attempt.started_utc), status, reason)


def _reason(exit_code: int, output: Output, stop: processes.StopRequest) -> str:
    if stop.signal is not None:
        return f"interrupted by {stop.signal.name} before the job was under way"
    how = f"was ended by {Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    last = "\n".join(output.last_lines)
    return f"the launcher of the job {how} {output.where} and left no result; its last lines:\n{last}"


def conclude(state: JobState, outcome: str | None) -> None:
    """Note how the job ended: `outcome`, or else what its result says."""
    result = store.read(state.job.result_path)
    state.result = result
    state.state = outcome or str(result["status"])
    state.reason = result["reason"]
    log = log_path(state.job.numbered(result["attempt"]))
    state.log = log if log.exists() else None
    state.ended = time.monotonic()


def _conclude_without_result(state: JobState, reason: str) -> None:
    state.state, state.reason, state.ended = "failed", reason, time.monotonic()


def stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns
