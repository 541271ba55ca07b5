"""The watchdog: it runs the ranks of a job, keeps their output, ends hangs and leaves no process behind.

`run` returns an `Ending`; `train/job/outcome.py` decides what it means for the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from train.job import hang_report, processes
from train.job.child import Child
from train.job.rank_output import OutputReader, RankOutput, RemoteLog
from utils.results.step_line import Step

GRACE_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Limits:
    """Longest times in seconds: to the first finished step and from the last step to the end, and between two steps."""

    start_seconds: float
    step_seconds: float


@dataclass
class Ending:
    """The end of a job's ranks, as their launcher saw it."""

    exit_code: int
    """Of torchrun; negative for a signal, as in subprocess."""
    last_step: Step | None = None
    last_lines: list[str] = field(default_factory=list)
    stopped_by: Signals | None = None
    """The signal that asked the launcher to stop."""
    overdue: str | None = None
    """For a job that the watchdog ended: the limit that it broke, and the state of its ranks."""
    signals: dict[int, Signals] = field(default_factory=dict)
    """Signal by rank, as torchrun reports them, without those that torchrun sent itself."""
    kernel_oom_kills: int = 0
    """Processes that the kernel ended on the whole machine meanwhile because memory ran out."""
    log_error: str | None = None
    """Why the log is incomplete; None if it is complete."""
    nodes: list[str] = field(default_factory=list)
    """One sentence for each other node that did not end well."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    limits: Limits,
    stop: processes.StopRequest,
    elsewhere: Iterable[Path] = (),
) -> Ending:
    """Run the command until it exits or times out; none of its processes is left when this returns.

    `elsewhere` are the logs of the other nodes: the steps may be printed in one of them.
    """
    processes.adopt_orphans()
    oom_kills = hang_report.kernel_oom_kills()
    output = RankOutput(log_path)
    others = [RemoteLog(path, lambda _, line: output.show(line)) for path in elsewhere]
    started = time.monotonic()
    child = Child(command, output.take, environment)
    overdue = None
    while not child.has_ended() and not stop and overdue is None:
        time.sleep(POLL_SECONDS)
        for other in others:
            other.read()
        overdue = _overdue(_furthest(output, others), limits, started)
    if overdue is not None:
        overdue += "; " + hang_report.describe_ranks(output.take)
    exit_code = child.close(GRACE_SECONDS)
    output.close()
    for other in others:
        other.read()
    return Ending(
        exit_code=exit_code,
        last_step=_furthest(output, others).last_step,
        last_lines=list(output.last_lines),
        stopped_by=stop.signal,
        overdue=overdue,
        signals=output.signals,
        kernel_oom_kills=hang_report.kernel_oom_kills() - oom_kills,
        log_error=output.log_error,
    )


def _furthest(output: OutputReader, others: Sequence[OutputReader]) -> OutputReader:
    """Return the output with the latest step: only one node prints steps."""
    return max((output, *others), key=lambda reader: reader.last_step_at or -math.inf)


def _overdue(output: OutputReader, limits: Limits, started: float) -> str | None:
    """Return which limit the job broke, None if it broke none; the end has the same limit as the start."""
    now, step = time.monotonic(), output.last_step
    waited = now - (output.last_step_at or started)
    is_between_steps = step is not None and step.number < step.total
    limit = limits.step_seconds if is_between_steps else limits.start_seconds
    if waited <= limit:
        return None
    name = "STEP_TIMEOUT_SECONDS" if is_between_steps else "START_TIMEOUT_SECONDS"
    if step is None:
        return f"no step was finished in {waited:.0f} s ({name}={limit:g})"
    last = f"step {step.number} of {step.total} ({step.seconds:.3f} s, loss {step.loss:.4f}, {step.memory_gb:.1f} GB)"
    return f"nothing was finished in the {waited:.0f} s after {last} ({name}={limit:g})"
