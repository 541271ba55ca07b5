"""What is asked of Slurm: to take a job, to say how its jobs are, to end them. Slurm's own commands, no library."""

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
"""States in which nothing of a job runs any more (squeue(1), JOB STATE CODES)."""
GONE = "GONE"
"""Of a job that Slurm no longer knows: it forgets one MinJobAge after its end, 300 s as a rule."""


class SlurmError(RuntimeError):
    """Slurm is missing, cannot be reached, or refuses; the message holds its own words."""


@dataclass(frozen=True)
class Seen:
    """A job as Slurm shows it."""

    state: str
    """Slurm's own word, or GONE."""
    reason: str = ""
    nodes: str = ""

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.state in (*ENDED, GONE)


def submit(script: str, after: str | None = None) -> str:
    """Give a script to Slurm and return the number of the job, which waits for the end of job `after`.

    No variable that holds a secret goes with it: Slurm would keep its value. Raises SlurmError.
    """
    dependency = [f"--dependency=afterany:{after}"] if after else []
    environment = {name: value for name, value in os.environ.items() if not SECRET.search(name)}
    said = _ask(["sbatch", "--parsable", *dependency], script, environment)
    return said.strip().splitlines()[-1].split(";")[0]


def queued(names: Sequence[str]) -> dict[str, str]:
    """Return the numbers of this user's jobs that wait or run, by their names; raise SlurmError."""
    lines = _ask(["squeue", "--noheader", "--me", "--name", ",".join(names), "--format", "%i %j"]).splitlines()
    return {name: number for number, name in (line.split(maxsplit=1) for line in lines)}


def look(numbers: Sequence[str]) -> dict[str, Seen]:
    """Return how each job is; raise SlurmError where Slurm does not answer."""
    command = ["squeue", "--noheader", "--states=all", "--jobs", ",".join(numbers), "--format", "%i|%T|%r|%N"]
    try:
        lines = _ask(command).splitlines()
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        lines = []
    found = {number: Seen(*rest) for number, *rest in (line.split("|", 3) for line in lines)}
    return {number: found.get(number) or Seen(GONE) for number in numbers}


def troubled_nodes(nodes: str) -> list[str]:
    """Return a sentence for each node of a job that is not well, as far as Slurm says; raise SlurmError."""
    lines = _ask(["sinfo", "--noheader", "--Node", "--nodes", nodes, "--format", "%N|%T|%E"]).splitlines()
    found = [line.split("|", 2) for line in dict.fromkeys(lines)]
    sick = ("down", "drain", "fail", "unk", "err")
    return [f"node {name} is {state} ({reason})" for name, state, reason in found if state.lower().startswith(sick)]


def cancel(numbers: Sequence[str]) -> None:
    """End jobs, whether they wait or run; raise SlurmError."""
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
