"""Run one job's ranks under a watchdog: the output kept, hangs and interrupts ended, nothing left running.

`run` returns an `Ending`; what it means for the result is `train/job/outcome.py`'s.
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
from train.job.rank_output import Elsewhere, Output, Said
from utils.results.step_line import Step

GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Limits:
    """Seconds that may pass: to the first finished step and from the last one to the end, and between two steps."""

    start_seconds: float
    step_seconds: float


@dataclass
class Ending:
    """How the ranks of a job ended, and what was known of them."""

    exit_code: int
    """Of torchrun; negative for a signal, as subprocess has it."""
    last_step: Step | None = None
    last_lines: list[str] = field(default_factory=list)
    stopped_by: Signals | None = None
    """The signal that asked the launcher to stop."""
    overdue: str | None = None
    """For a job that the watchdog ended: what it waited for, and what the ranks were doing."""
    signals: dict[int, Signals] = field(default_factory=dict)
    """Signal by rank, as torchrun reports them, without those that torchrun sent itself."""
    kernel_oom_kills: int = 0
    """Processes that the kernel ended for want of memory meanwhile, on the whole machine."""
    log_error: str | None = None
    """Why the log is incomplete, where it is."""
    nodes: list[str] = field(default_factory=list)
    """What is known of other nodes that did not end well, a sentence each."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    limits: Limits,
    stop: processes.StopRequest,
    elsewhere: Iterable[Path] = (),
) -> Ending:
    """Run the command to its end, or to the end of patience; no process of it is left when this returns.

    `elsewhere` are the logs of the other nodes: the steps may be told in one of them.
    """
    processes.adopt_orphans()
    oom_kills = hang_report.kernel_oom_kills()
    output = Output(log_path)
    others = [Elsewhere(path, output.show) for path in elsewhere]
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


def _furthest(output: Said, others: Sequence[Said]) -> Said:
    """Return what knows of the latest step: one node tells of them, whichever it is."""
    return max((output, *others), key=lambda said: said.last_step_at or -math.inf)


def _overdue(output: Said, limits: Limits, started: float) -> str | None:
    """Return what was waited for too long; to end takes a rank as it takes it to start, and has the same limit."""
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
