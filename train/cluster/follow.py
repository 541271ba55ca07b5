"""Slurm's queue: submit jobs, read their state, follow them until they end, and record how Slurm ended them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from train.job import processes
from train.job.outcome import Attempt, finalize_result, stamp, why_unwritten
from train.job.rank_output import RemoteLog, progress
from train.runner.run_job import conclude, conclude_without_result, show_progress
from train.runner.state import RUNNING, JobState, StatusFile
from train.runner.view import View
from utils.own_files import note
from utils.results.store import ResultError

POLL_SECONDS = 3.0
SHOW_SECONDS = 0.5
RESULT_SECONDS = 45.0
"""Longest time until the result of an ended job is visible here: a network file system looks for new names every 30 s,
and a launcher that Slurm has asked to end has KillWait, usually 30 s, to write."""
STATUS = {"TIMEOUT": "timeout", "DEADLINE": "timeout", "OUT_OF_MEMORY": "oom"}
"""Status of a result by Slurm's state; every other end without a result is `failed`."""
TIMEOUT_SECONDS = 60.0
ABNORMAL = ("CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
"""Ends that come from outside of the job, whose cause its launcher cannot know."""
ENDED = ("COMPLETED", "FAILED", *ABNORMAL)
"""States in which no process of a job runs any more (squeue(1), JOB STATE CODES)."""
SICK = ("down", "drain", "fail", "unk", "err")
"""Beginnings of the states of a node with a problem (sinfo(1), NODE STATE CODES)."""
GONE = "GONE"
"""State of a job that Slurm no longer knows: it forgets a job MinJobAge, usually 300 s, after its end."""


class SlurmError(RuntimeError):
    """Slurm is missing, cannot be reached, or refuses; the message contains Slurm's own."""


@dataclass(frozen=True)
class QueueEntry:
    """State of a job as squeue shows it."""

    state: str
    """Slurm's state code, or GONE."""
    reason: str = ""
    nodes: str = ""


@dataclass
class SlurmJob:
    """One job of the matrix in Slurm's queue."""

    number: str
    state: JobState
    attempt: Attempt
    before: tuple[int, int] | None
    """`stamp` of the result when the job was submitted."""
    log_path: Path
    """Path of the job's output."""
    entry: QueueEntry = field(default_factory=lambda: QueueEntry("PENDING"))
    log: RemoteLog | None = None


def follow(jobs: Sequence[SlurmJob], view: View, status: StatusFile, stop: processes.StopRequest) -> None:
    """Wait until all jobs have ended, show the progress of each, and finalize their results.

    A request to stop cancels the jobs that have not ended. Raises SlurmError if that fails.
    """
    asked_at, is_cancelled, error = 0.0, False, ""
    while True:
        left = [job for job in jobs if not job.state.is_done]
        if not left:
            return
        if stop and not is_cancelled:
            _ask(["scancel", *(job.number for job in left)])
            # 0.0: the state is asked for at once
            is_cancelled, asked_at = True, 0.0
        if time.monotonic() - asked_at >= POLL_SECONDS:
            asked_at = time.monotonic()
            error = _update(left, view, stop, error)
        for job in left:
            if job.log is not None:
                job.log.read()
        show_progress(view, status)
        time.sleep(SHOW_SECONDS)


def _update(jobs: Sequence[SlurmJob], view: View, stop: processes.StopRequest, last_error: str) -> str:
    """Read the state of the jobs from Slurm; return Slurm's error, which is shown once, or nothing."""
    try:
        answers = entries([job.number for job in jobs])
    except SlurmError as error:  # its controller may be away for a while, and the jobs run on
        if str(error) != last_error:
            view.print(f"warning: {error}; trying again every {POLL_SECONDS:g} s")
        return str(error)
    for job in jobs:
        entry = answers[job.number]
        if (entry.state, entry.nodes) != (job.entry.state, job.entry.nodes):
            view.print(f"    Slurm job {job.number}, {job.state.title}: {_state(entry)}")
        # squeue forgets the nodes together with the job
        job.entry = QueueEntry(GONE, nodes=job.entry.nodes) if entry.state == GONE else entry
        if entry.state == "RUNNING" and job.state.state != RUNNING:
            job.state.state, job.state.started = RUNNING, time.monotonic()
            # the log is on a disk of the nodes and of this machine
            job.log = RemoteLog(job.log_path, job.state.take_step)
            view.job_started(job.state)
        if entry.state in (*ENDED, GONE):
            _end(job, stop)
            view.job_ended(job.state)
    return ""


def _end(job: SlurmJob, stop: processes.StopRequest) -> None:
    _wait_for_result(job)
    if job.state.started is None:
        job.state.started = time.monotonic()
    cause, state = _cause(job, stop), job.entry.state
    from_outside = cause if state in ABNORMAL else None
    try:
        finalize_result(job.attempt, job.before, _reason(job, cause), STATUS.get(state), from_outside)
        conclude(job.state, None)
    except (OSError, ResultError) as error:
        conclude_without_result(job.state, f"no result could be written: {why_unwritten(job.attempt.job, error)}")
    if job.state.log is None and job.log_path.exists():
        job.state.log = job.log_path
        note(job.log_path, grows=True)


def _wait_for_result(job: SlurmJob) -> None:
    if job.state.state != RUNNING:
        return  # a job that never ran has left nothing
    path = job.attempt.job.result_path
    processes.wait_until(
        lambda: not path.parent.is_dir() or stamp(path) not in (None, job.before),
        RESULT_SECONDS,
        poll_seconds=SHOW_SECONDS,
        refresh=lambda: next(path.parent.iterdir(), None),  # makes a network file system look again
    )


def _reason(job: SlurmJob, cause: str) -> str:
    if job.entry.state == "COMPLETED":
        return (
            f"{cause} and left no result here: OUTPUT_DIR={job.attempt.job.config.output_dir} must be the same folder "
            f"on the nodes and on this machine; see {job.log_path}"
        )
    lines = list(job.log.last_lines) if job.log is not None else []
    if job.state.step:
        cause += f" {progress(job.state.step)}"
    return "\n".join([f"{cause} and left no result; last lines of {job.log_path}:", *(lines or ["(none)"])])


def _cause(job: SlurmJob, stop: processes.StopRequest) -> str:
    """Return how Slurm ended the job, and which of its nodes have a problem."""
    state = f"Slurm job {job.number}: {_state(job.entry)}"
    if stop.signal is not None:
        return f"{state}: cancelled here after {stop.signal.name}"
    try:
        troubled = troubled_nodes(job.entry.nodes) if job.entry.nodes else []
    except SlurmError as error:
        troubled = [str(error)]
    return "; ".join([state, *troubled])


def _state(entry: QueueEntry) -> str:
    if entry.state == GONE:
        return "Slurm does not know it any more"
    text = entry.state
    if entry.reason not in ("", "None", "NonZeroExitCode"):
        text += f" ({entry.reason})"
    if entry.nodes:
        text += f" on {entry.nodes}"
    return text


def submit(script: str, environment: Mapping[str, str], after: str | None = None) -> str:
    """Submit a script and return the number of the job, which waits for the end of job `after`.

    Slurm gets the variables of `environment` only. Raises SlurmError.
    """
    command = ["sbatch", "--parsable"]
    if after is not None:
        command.append(f"--dependency=afterany:{after}")
    # the script comes by stdin, so no file of it is left
    answer = _ask(command, script, environment).strip().splitlines()[-1]
    return answer.split(";")[0]  # number;cluster


def queued(names: Sequence[str]) -> dict[str, str]:
    """Return the numbers of this user's waiting and running jobs by their names; raise SlurmError."""
    command = ["squeue", "--noheader", "--me", "--name", ",".join(names), "--format", "%i %j"]
    numbers = {}
    for line in _ask(command).splitlines():
        number, name = line.split(maxsplit=1)
        numbers[name] = number
    return numbers


def entries(numbers: Sequence[str]) -> dict[str, QueueEntry]:
    """Return the state of each job by its number; raise SlurmError if Slurm does not answer."""
    command = ["squeue", "--noheader", "--states=all", "--jobs", ",".join(numbers), "--format", "%i|%T|%r|%N"]
    try:
        lines = _ask(command).splitlines()
    except SlurmError as error:
        # squeue refuses all numbers where it has forgotten one
        if "Invalid job id" not in str(error):
            raise
        lines = []
    states = dict.fromkeys(numbers, QueueEntry(GONE))
    for line in lines:
        number, state, reason, nodes = line.split("|", 3)
        states[number] = QueueEntry(state, reason, nodes)
    return states


def troubled_nodes(nodes: str) -> list[str]:
    """Return a sentence for each node of a job that is down, drained or failing; raise SlurmError."""
    lines = _ask(["sinfo", "--noheader", "--Node", "--nodes", nodes, "--format", "%N|%T|%E"]).splitlines()
    sentences = []
    for line in dict.fromkeys(lines):  # a node in several partitions is listed once for each
        name, state, reason = line.split("|", 2)
        if state.lower().startswith(SICK):
            sentences.append(f"node {name} is {state} ({reason})")
    return sentences


def _ask(command: Sequence[str], given: str = "", environment: Mapping[str, str] | None = None) -> str:
    try:
        ran = subprocess.run(
            command, input=given, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
    except FileNotFoundError as error:
        raise SlurmError(f"{command[0]}: not on PATH; run this where Slurm's commands are, on a login node") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]}: Slurm did not answer within {TIMEOUT_SECONDS:g} s") from error
    if ran.returncode != 0:
        raise SlurmError(f"{command[0]}: exit code {ran.returncode}: {' '.join(ran.stderr.split())}")
    return ran.stdout
