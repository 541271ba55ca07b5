"""Jobs in Slurm's queue, followed to their end; what Slurm says of an end stands in the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train.cluster import script as slurm_script
from train.cluster import slurm_commands as slurm_queue
from train.cluster.slurm_commands import Seen, SlurmError
from train.job import processes
from train.job.outcome import Attempt, leave
from train.job.rank_output import Elsewhere
from train.runner.run_job import conclude, leave_failure, stamp
from train.runner.state import RUNNING, JobState, StatusFile
from train.runner.view import View
from utils.results import store

POLL_SECONDS = 3.0
SHOW_SECONDS = 0.5
RESULT_SECONDS = 45.0
"""How long the result of a job that has ended may take to show here: a network file system looks for new names once
in 30 s, and a launcher that Slurm has told to end has KillWait, 30 s as a rule, for its last words."""
STATUS = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "OUT_OF_MEMORY": "oom"}
"""Status of a result by Slurm's state; every other end without a result is `failed`."""
ABNORMAL = tuple(state for state in slurm_queue.ENDED if state not in ("COMPLETED", "FAILED"))
"""Ends that come from outside of the job: Slurm's word says more than what its launcher could see of it."""


@dataclass
class SlurmJob:
    """One job of the matrix in Slurm's queue."""

    number: str
    state: JobState
    attempt: Attempt
    before: tuple[int, int] | None
    """`stamp` of the result when the job was submitted."""
    seen: Seen = field(default_factory=lambda: Seen("PENDING"))
    log: Elsewhere | None = None

    @property
    def log_path(self) -> Path:
        """What the job prints."""
        return Path(str(slurm_script.log_pattern(self.attempt.job)).replace("%j", self.number))


def follow(jobs: Sequence[SlurmJob], view: View, status: StatusFile, stop: processes.StopRequest) -> None:
    """Wait for the end of all jobs, show where each is, and see that a true result of each stands.

    A request to stop cancels what has not ended. Raises SlurmError where what is asked then fails.
    """
    asked_at, is_cancelled, trouble = 0.0, False, ""
    while left := [job for job in jobs if not job.state.is_done]:
        if stop and not is_cancelled:
            slurm_queue.cancel([job.number for job in left])
            is_cancelled, asked_at = True, 0.0
        if time.monotonic() - asked_at >= POLL_SECONDS:
            asked_at = time.monotonic()
            trouble = _look(left, view, stop, trouble)
        for job in left:
            if job.log is not None:
                job.log.read()
        view.refresh()
        status.write_sometimes()
        time.sleep(SHOW_SECONDS)


def _look(jobs: Sequence[SlurmJob], view: View, stop: processes.StopRequest, trouble: str) -> str:
    """Take in what Slurm says now; return what it complains of, which is said once."""
    try:
        found = slurm_queue.look([job.number for job in jobs])
    except SlurmError as error:  # its controller may be away for a while, and the jobs run on
        if str(error) != trouble:
            view.say(f"warning: {error}; asked again every {POLL_SECONDS:g} s")
        return str(error)
    for job in jobs:
        seen = found[job.number]
        if (seen.state, seen.nodes) != (job.seen.state, job.seen.nodes):
            view.say(f"    Slurm job {job.number}, {job.state.title}: {_said(seen)}")
        job.seen = seen if seen.state != slurm_queue.GONE else Seen(seen.state, nodes=job.seen.nodes)
        if seen.state == "RUNNING" and job.state.state != RUNNING:
            job.state.state, job.state.started = RUNNING, time.monotonic()
            job.log = Elsewhere(job.log_path, lambda line: None, job.state.take_step)
            view.job_started(job.state)
        if seen.is_ended:
            _end(job, stop)
            view.job_ended(job.state)
    return ""


def _end(job: SlurmJob, stop: processes.StopRequest) -> None:
    path = job.attempt.job.result_path
    patience = RESULT_SECONDS if job.state.state == RUNNING else 0.0  # what never ran has left nothing
    deadline = time.monotonic() + patience
    while stamp(path) in (None, job.before) and time.monotonic() < deadline:
        next(path.parent.iterdir(), None)  # makes a network file system look again
        time.sleep(SHOW_SECONDS)
    if job.state.started is None:
        job.state.started = time.monotonic()
    if stamp(path) in (None, job.before):
        leave_failure(job.attempt, _reason(job, stop), STATUS.get(job.seen.state, "failed"))
    else:
        _add_reason(job, stop)
    conclude(job.state, None)
    if job.state.log is None and job.log_path.exists():
        job.state.log = job.log_path


def _add_reason(job: SlurmJob, stop: processes.StopRequest) -> None:
    """What the launcher says of a job that Slurm has ended is what it saw: that it was told to end."""
    written = store.read(job.attempt.job.result_path)
    if written["status"] != "ok" and job.seen.state in ABNORMAL:
        status = STATUS.get(job.seen.state, written["status"])
        leave(job.attempt, status, f"{_ending(job, stop)}; its launcher says: {written['reason']}", written)


def _reason(job: SlurmJob, stop: processes.StopRequest) -> str:
    said = _ending(job, stop)
    if job.seen.state == "COMPLETED":
        return (
            f"{said} and left no result here: OUTPUT_DIR={job.attempt.job.config.output_dir} must be the same folder "
            f"on the nodes and on this machine; see {job.log_path}"
        )
    last = list(job.log.last_lines) if job.log is not None else []
    where = f" after step {job.state.step.number} of {job.state.step.total}" if job.state.step else ""
    return f"{said}{where} and left no result; last lines of {job.log_path}:\n" + "\n".join(last or ["(none)"])


def _ending(job: SlurmJob, stop: processes.StopRequest) -> str:
    """Say how Slurm ended the job, and which of its nodes are not well."""
    said = f"Slurm job {job.number}: {_said(job.seen)}"
    if stop.signal is not None:
        return f"{said}: cancelled here after {stop.signal.name}"
    try:
        troubled = slurm_queue.troubled_nodes(job.seen.nodes) if job.seen.nodes else []
    except SlurmError as error:
        troubled = [str(error)]
    return "; ".join([said, *troubled])


def _said(seen: Seen) -> str:
    if seen.state == slurm_queue.GONE:
        return "Slurm does not know it any more"
    reason = f" ({seen.reason})" if seen.reason not in ("", "None", "NonZeroExitCode") else ""
    return f"{seen.state}{reason}" + (f" on {seen.nodes}" if seen.nodes else "")
