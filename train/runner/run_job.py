"""One job of the matrix: started through its script and followed line by line, its result finalized at the end."""

from __future__ import annotations

import shlex
import time
from collections import deque

from train.job import processes
from train.job.child import Child
from train.job.job import log_path, utc_now
from train.job.outcome import Attempt, LauncherEnd, finalize_result, stamp
from train.job.rank_output import OutputReader, progress
from train.job.reserve import remove_leftovers
from train.job.supervise import GRACE_SECONDS
from train.runner import plan
from train.runner.state import RUNNING, SKIPPED, JobState, StatusFile
from train.runner.view import View
from utils.results import store
from utils.results.step_line import Step

POLL_SECONDS = 0.2
LAUNCHER_GRACE_SECONDS = 45.0
"""Time for a launcher that was asked to stop to end its ranks, by force if needed, and to write a result."""
LAST_LINES = 6
WARNING = "warning: "


def run_job(
    matrix: plan.Matrix, state: JobState, digest: str, view: View, status: StatusFile, stop: processes.StopRequest
) -> None:
    """Run one job, unless it has an ok result, and record in `state` how it ended; a result exists afterwards.

    `digest` is the SHA-256 of the data.
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
        before, output = stamp(job.result_path), LauncherOutput(state)
        child = Child(plan.command(matrix, job), output.take, plan.environment(matrix))
        exit_code = _follow(child, output, view, status, stop)
        after = stamp(job.result_path)
        try:
            if exit_code != 0:
                finalize_result(attempt, LauncherEnd(before, _reason(exit_code, output, stop)))
            conclude(state, SKIPPED if exit_code == 0 and after == before else None)
        except (OSError, store.ResultError) as error:  # no room even for a failure; the next job may have some
            _conclude_without_result(state, f"no result could be written: {error}; " + "; ".join(output.last_lines))
    view.job_ended(state)
    status.write()


class LauncherOutput(OutputReader):
    """Output of a launcher: steps go to the state of the job, warnings of its pre-flight to the view."""

    def __init__(self, state: JobState) -> None:
        super().__init__(LAST_LINES)
        self.warnings: deque[str] = deque()
        """Warnings that are not shown yet."""
        self._state = state

    def take_step(self, step: Step, line: str) -> None:
        """Note a finished step."""
        super().take_step(step, line)
        self._state.take_step(step)

    def take_text(self, text: str) -> None:
        """Keep a line; before the first step also as a warning, if it is one."""
        super().take_text(text)
        if text.startswith(WARNING) and self.last_step is None:
            self.warnings.append(text)


def _follow(child: Child, output: LauncherOutput, view: View, status: StatusFile, stop: processes.StopRequest) -> int:
    """Wait for a launcher, show its progress, pass a request to stop on to it, and return its exit code."""
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


def _show_warnings(output: LauncherOutput, view: View) -> None:
    while output.warnings:
        view.print(f"    {output.warnings.popleft()}")


def _reason(exit_code: int, output: LauncherOutput, stop: processes.StopRequest) -> str:
    if stop.signal is not None:
        return f"interrupted by {stop.signal.name} before the job was under way"
    last = "\n".join(output.last_lines)
    return (
        f"the launcher of the job {processes.how_ended(exit_code)} {progress(output.last_step)} and left no result; "
        f"its last lines:\n{last}"
    )


def conclude(state: JobState, outcome: str | None) -> None:
    """Record how the job ended: `outcome`, or without one the status of its result."""
    result = store.read(state.job.result_path)
    state.result = result
    state.state = outcome or str(result["status"])
    state.reason = result["reason"]
    log = log_path(state.job.numbered(result["attempt"]))
    state.log = log if log.exists() else None
    state.ended = time.monotonic()


def _conclude_without_result(state: JobState, reason: str) -> None:
    state.state, state.reason, state.ended = "failed", reason, time.monotonic()
