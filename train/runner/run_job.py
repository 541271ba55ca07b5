"""One job of the matrix: started through its script and followed line by line, its result finalized at the end.

A node other than 0 runs the same jobs in the same order as node 0, which finalizes their results. Each launcher waits
for node 0's, so the nodes need no other agreement. A job that has an ok result is skipped on every node, because all
nodes use the same OUTPUT_DIR.

After each run the rule of utils/results/performance.py decides whether another one follows. A matrix begins with the
least number of runs; its list of jobs grows by one run at a time, or loses runs that are not needed any more. The same
results give the same list, so an interrupted matrix continues with the right number of runs, and every node of a job
finds the same runs.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from train.job import nodes, processes
from train.job.job import Job, log_path, remove_left_behind, remove_leftovers, utc_now
from train.job.outcome import Attempt, finalize_result, stamp, why_unwritten
from train.job.rank_output import OutputReader, progress
from train.job.supervise import GRACE_SECONDS
from train.runner import plan
from train.runner.state import RUNNING, SKIPPED, WAITING, WARNING, JobState, MatrixState, StatusFile
from train.runner.view import View
from utils.errors import DataError
from utils.results import store
from utils.results.performance import rates
from utils.settings.config import RunConfig

POLL_SECONDS = 0.2
LAST_LINES = 6
DATA_POLL_SECONDS = 5.0
RESULT_SECONDS = 60.0
"""Longest time until another node sees the result of a job that has ended: node 0 waits 20 s for the reports of the
others (ENDINGS_SECONDS), and a network file system looks for new names every 30 s."""


def run_job(
    matrix: plan.Matrix, state: JobState, digest: str, view: View, status: StatusFile, stop: processes.StopRequest
) -> None:
    """Run one job, unless it has an ok result, and record in `state` how it ended; a result exists afterwards.

    `digest` is the SHA-256 of the data.
    """
    job = state.job
    attempt = Attempt(job, job.identity(digest), shlex.join(plan.command(matrix, job)), utc_now())
    state.started = time.monotonic()
    if plan.is_done(job, attempt.identity):
        remove_leftovers(job.result_path)  # of a launcher that was killed when its trainer had just written the result
        conclude(state, SKIPPED)
    else:
        state.state = RUNNING
        view.job_started(state)
        before, output = stamp(job.result_path), LauncherOutput(state, view)
        exit_code = run_launcher(matrix, job, output.take, stop, partial(show_progress, view, status))
        after = stamp(job.result_path)
        remove_left_behind()  # of a launcher that was killed
        try:
            if exit_code != 0:
                finalize_result(attempt, before, _reason(exit_code, output, stop))
            # exit code 0 without a new result: the launcher found one that was there already
            conclude(state, SKIPPED if exit_code == 0 and after == before else None)
        except (OSError, store.ResultError) as error:  # no room even for a failure; the next job may have some
            why = f"no result could be written: {why_unwritten(job, error)}"
            conclude_without_result(state, "; ".join([why, *output.last_lines]))
    view.job_ended(state)
    status.write()


class LauncherOutput(OutputReader):
    """Output of a launcher: steps go to the state of the job, warnings of its pre-flight to the view."""

    def __init__(self, state: JobState, view: View) -> None:
        super().__init__(LAST_LINES, state.take_step)
        self._warn = partial(view.warn, state)

    def _take_text(self, text: str) -> None:
        """Keep a line, also of torchrun's report; before the first step also as a warning, if it is one."""
        self.last_lines.append(text)
        if text.startswith(WARNING) and self.last_step is None:
            self._warn(text)


def run_launcher(
    matrix: plan.Matrix,
    job: Job,
    on_line: Callable[[str], None],
    stop: processes.StopRequest,
    refresh: Callable[[], None] = lambda: None,
) -> int:
    """Run the launcher of a job, pass a request to stop on to it, and return its exit code; see `Child` for `on_line`.

    `refresh` is called every POLL_SECONDS.
    """
    child = processes.Child(plan.command(matrix, job), on_line, plan.environment(matrix))
    has_ended = processes.wait_until(child.has_ended, math.inf, stop, POLL_SECONDS, refresh)
    if not has_ended and stop.signal is not None:
        # the launcher ends its ranks and writes a result, which takes a while
        child.process.send_signal(stop.signal)
        processes.wait_until(child.has_ended, processes.LAUNCHER_GRACE_SECONDS, None, POLL_SECONDS, refresh)
    return child.close(GRACE_SECONDS)


def show_progress(view: View, status: StatusFile) -> None:
    """Show the progress of the matrix and write it into its file; call it often."""
    view.refresh()
    status.write_sometimes()


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
    # the result may be of an earlier attempt, whose log may be gone
    log = log_path(state.job.numbered(result["attempt"]))
    state.log = log if log.exists() else None
    state.ended = time.monotonic()


def conclude_without_result(state: JobState, reason: str) -> None:
    """Record that the job failed and that there is no result of it."""
    state.state, state.reason, state.ended = "failed", reason, time.monotonic()


def run_on_other_node(matrices: Sequence[plan.Matrix], stop: processes.StopRequest) -> int:
    """Run this node's part of every job; return 0, 128 + signal, or 1 if a launcher here has failed.

    Raises DataError if node 0 has not prepared the data within START_TIMEOUT_SECONDS.
    """
    processes.adopt_orphans()
    has_failed = False
    for matrix in matrices:
        digests = _wait_for_data(matrix.config, stop)
        state = MatrixState.of(matrix.jobs)
        while not stop and state.next_job is not None:
            job_state = state.next_job
            job = job_state.job
            place = f"node {matrix.config.node_rank}, job {job_state.number} of {state.total}"
            print(f"--- {place}: {job.name}", flush=True)
            before = None
            if not plan.is_done(job, job.identity(digests[job.model])):
                before = stamp(job.result_path)
            job_state.state = RUNNING
            code = run_launcher(matrix, job, partial(print, end="", file=sys.stderr, flush=True), stop)
            has_failed |= code != 0
            if matrix.rule.is_fixed:
                job_state.state = SKIPPED  # its result decides nothing
            elif not stop:
                _take_result(job_state, before, stop)
                follow_up(state, job_state, partial(print, flush=True))
    return stop.exit_code(otherwise=int(has_failed))


def _take_result(state: JobState, before: tuple[int, int] | None, stop: processes.StopRequest) -> None:
    """Wait until node 0 has finalized the result of a job, another one than `before`, and record how the job ended.

    Node 0 removes the folder of the meeting when the result is final. A job without a result counts as failed, as it
    does there.
    """
    job = state.job

    def is_final() -> bool:
        return not nodes.folder(job).exists() and stamp(job.result_path) not in (None, before)

    # a network file system shows a new file late
    if not processes.wait_until(is_final, RESULT_SECONDS, stop, POLL_SECONDS) and not stop:
        conclude_without_result(state, "node 0 has written no result")
        return
    try:
        conclude(state, None)
    except store.ResultError as error:
        conclude_without_result(state, str(error))


def _wait_for_data(config: RunConfig, stop: processes.StopRequest) -> dict[str, str]:
    """Return the digest of the data of each model; empty after a request to stop."""
    deadline = time.monotonic() + config.start_timeout_seconds
    while not stop:
        try:
            return plan.data_digests(config)
        except DataError:
            if time.monotonic() > deadline:
                raise
        time.sleep(DATA_POLL_SECONDS)
    return {}


def follow_up(state: MatrixState, ended: JobState, say: Callable[[str], None]) -> None:
    """Add the next run of the job that has ended, or drop the runs that it does not need, and say why.

    Nothing changes while runs wait that take place in any case. With ORDER=interleaved the next run is the last of the
    list, else it follows the one that has ended.
    """
    job = ended.job
    name = " ".join(job.kind)
    runs = [other for other in state.jobs if other.job.kind == job.kind]
    is_waiting = any(run.state == WAITING for run in runs)
    good = rates(run.result for run in runs if run.is_good and run.result is not None)
    failed = sum(run.is_done for run in runs) - len(good)
    decision = job.rule.decide(good, failed)
    # further runs that wait, of an earlier plan, are dropped
    if not decision.goes_on:
        state.jobs = [other for other in state.jobs if other.job.kind != job.kind or other.is_done]
        state.ended[job.kind] = decision.why
        if is_waiting:
            say(f"    {name}: {decision.why}")
    elif not is_waiting:
        index = len(state.jobs) if job.config.order == "interleaved" else state.jobs.index(ended) + 1
        state.jobs.insert(index, JobState(0, replace(job, run=runs[-1].job.run + 1)))
        say(f"    {name}: {decision.why}: another run follows")
    for number, other in enumerate(state.jobs, 1):
        other.number = number


def show_ends(state: MatrixState, say: Callable[[str], None]) -> None:
    """Say for each job of several runs how many it got and how well they know its mean."""
    for kind, why in state.ended.items():
        runs = sum(job.job.kind == kind for job in state.jobs)
        if runs > 1:
            say(f"runs: {' '.join(kind)}: {why}")
