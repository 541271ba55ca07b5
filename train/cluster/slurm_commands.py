"""Slurm's commands: submit a job, read the state of jobs and nodes, cancel jobs. No library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from utils.provenance.origin import SECRET

TIMEOUT_SECONDS = 60.0
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED"),
)
"""States in which no process of a job runs any more (squeue(1), JOB STATE CODES)."""
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

    @property
    def is_ended(self) -> bool:
        """True if no process of the job runs any more."""
        return self.state in (*ENDED, GONE)


def submit(script: str, after: str | None = None) -> str:
    """Submit a script and return the number of the job, which waits for the end of job `after`.

    Variables that hold secrets are left out, because Slurm would store them. Raises SlurmError.
    """
    dependency = [f"--dependency=afterany:{after}"] if after else []
    environment = {name: value for name, value in os.environ.items() if not SECRET.search(name)}
    output = _ask(["sbatch", "--parsable", *dependency], script, environment)
    return output.strip().splitlines()[-1].split(";")[0]


def queued(names: Sequence[str]) -> dict[str, str]:
    """Return the numbers of this user's waiting and running jobs by their names; raise SlurmError."""
    lines = _ask(["squeue", "--noheader", "--me", "--name", ",".join(names), "--format", "%i %j"]).splitlines()
    return {name: number for number, name in (line.split(maxsplit=1) for line in lines)}


def entries(numbers: Sequence[str]) -> dict[str, QueueEntry]:
    """Return the state of each job by its number; raise SlurmError if Slurm does not answer."""
    command = ["squeue", "--noheader", "--states=all", "--jobs", ",".join(numbers), "--format", "%i|%T|%r|%N"]
    try:
        lines = _ask(command).splitlines()
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        lines = []
    found = {number: QueueEntry(*rest) for number, *rest in (line.split("|", 3) for line in lines)}
    return {number: found.get(number) or QueueEntry(GONE) for number in numbers}


def troubled_nodes(nodes: str) -> list[str]:
    """Return a sentence for each node of a job that is down, drained or failing; raise SlurmError."""
    lines = _ask(["sinfo", "--noheader", "--Node", "--nodes", nodes, "--format", "%N|%T|%E"]).splitlines()
    found = [line.split("|", 2) for line in dict.fromkeys(lines)]
    sick = ("down", "drain", "fail", "unk", "err")
    return [f"node {name} is {state} ({reason})" for name, state, reason in found if state.lower().startswith(sick)]


def cancel(numbers: Sequence[str]) -> None:
    """Cancel waiting and running jobs; raise SlurmError."""
    _ask(["scancel", *numbers])


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
