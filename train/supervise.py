"""Run one job's ranks under a watchdog: the output kept, hangs and interrupts ended, nothing left running.

`run` returns an `Ending`; what it means for the result is `train/account.py`'s.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import TextIO

from train import vitals
from train.child import Child
from utils import processes
from utils.progress import Step, parse_step

LAST_LINES = 12
GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""
POLL_SECONDS = 0.2
_FAILED_RANK = re.compile(r"^\s*rank\s*: (?P<rank>\d+) ")
_FAILED_EXIT = re.compile(r"^\s*exitcode\s*: (?P<code>-?\d+) ")
_REPORT = re.compile(r"[EW]\d{4} .*(failed \(exitcode|Sending process|Unable to shutdown)")
"""Where torchrun's own report of a failed rank begins; what the ranks said stands before it."""
_FORCED = "forcefully exiting via"
"""torchrun says so when it ends by SIGKILL a rank that did not heed SIGTERM."""


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


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log_path: Path,
    limits: Limits,
    stop: processes.StopRequest,
) -> Ending:
    """Run the command to its end, or to the end of patience; no process of it is left when this returns."""
    processes.adopt_orphans()
    oom_kills = vitals.kernel_oom_kills()
    output = Output(log_path)
    started = time.monotonic()
    child = Child(command, output.take, environment)
    overdue = None
    while not child.has_ended() and not stop and overdue is None:
        time.sleep(POLL_SECONDS)
        overdue = _overdue(output, limits, started)
    if overdue is not None:
        overdue += "; " + vitals.describe_ranks(output.take)
    exit_code = child.close(GRACE_SECONDS)
    output.close()
    return Ending(
        exit_code=exit_code,
        last_step=output.last_step,
        last_lines=list(output.last_lines),
        stopped_by=stop.signal,
        overdue=overdue,
        signals=output.signals,
        kernel_oom_kills=vitals.kernel_oom_kills() - oom_kills,
        log_error=output.log_error,
    )


class Output:
    """Everything the ranks print: to the log, to the terminal, and read for steps and for torchrun's own report."""

    def __init__(self, log_path: Path) -> None:
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.last_step: Step | None = None
        self.last_step_at: float | None = None
        """time.monotonic() of the last step's line."""
        self.signals: dict[int, Signals] = {}
        self.log_error: str | None = None
        self._log: TextIO | None = log_path.open("w", encoding="utf8")
        self._terminal: TextIO | None = sys.stdout
        self._failed_rank: int | None = None
        self._is_report = False
        self._is_forced = False

    def take(self, line: str) -> None:
        """Take one line, with its newline."""
        self._keep(line)
        step = parse_step(line)
        if step is not None:
            self.last_step, self.last_step_at = step, time.monotonic()
        elif line.strip():
            self._is_report = self._is_report or _REPORT.match(line) is not None
            if self._is_report:
                self._read_report(line)
            else:
                self.last_lines.append(line.rstrip())

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _keep(self, line: str) -> None:
        """A full disk or a closed terminal must not end the job that is being watched."""
        if self._log is not None:
            try:
                self._log.write(line)
                self._log.flush()
            except OSError as error:
                self.log_error, self._log = str(error), None
        if self._terminal is not None:
            try:
                self._terminal.write(line)
                self._terminal.flush()
            except OSError:
                self._terminal = None

    def _read_report(self, line: str) -> None:
        self._is_forced = self._is_forced or _FORCED in line
        if match := _FAILED_RANK.match(line):
            self._failed_rank = int(match["rank"])
        elif (match := _FAILED_EXIT.match(line)) and self._failed_rank is not None:
            number = -int(match["code"])
            torchrun_did = number == Signals.SIGTERM or (number == Signals.SIGKILL and self._is_forced)
            if number > 0 and not torchrun_did:
                self.signals[self._failed_rank] = Signals(number)


def _overdue(output: Output, limits: Limits, started: float) -> str | None:
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
