"""The views of a running matrix for people, and times in words: `4:12 elapsed, about 3:10 left`.

Both views show plain lines and write them into the log of the matrix. On a terminal live_view.py adds live lines.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TextIO

from train.runner.state import SKIPPED, WARNING, JobState, MatrixState
from utils import redact
from utils.own_files import note

PLAIN_EVERY_SECONDS = 60.0
PLAIN_EVERY_PART = 0.1
"""Without a terminal, a job prints a line at every tenth of its steps and at least one a minute."""

_LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")


def is_matrix_log(path: Path) -> bool:
    """Recognise the log of a matrix by the time at its beginning; it is empty after a kill before the first line."""
    with path.open("rb") as file:
        begin = file.read(32)
    return not begin or _LINE.match(begin) is not None


class View(AbstractContextManager["View"]):
    """View without a terminal: plain lines, on the stream and in the log of the matrix."""

    def __init__(self, state: MatrixState, log_path: Path, stream: TextIO | None = None) -> None:
        self.state = state
        self._stream = stream or sys.stdout
        self._log: TextIO | None = log_path.open("a", encoding="utf8")
        self._log_path = log_path
        # purge removes only files that are listed
        note(log_path, grows=True)
        self._printed_at = 0.0
        self._printed_step = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()
            note(self._log_path)
            self._log = None

    def print(self, text: str) -> None:
        """Print a line and write it into the log, without secrets."""
        self.log(text)
        self._show(redact.text(text))

    def log(self, text: str) -> None:
        """Write a line into the log only, without secrets."""
        if self._log is None:
            return
        try:
            self._log.write(_dated(redact.text(text)))
            self._log.flush()
        except OSError as error:  # a full disk must not end the matrix
            self._log = None
            self._show(f"warning: the log of the matrix ends here: {error}")

    def warn(self, job: JobState, text: str) -> None:
        """Keep a warning of a job for the end, where each kind is shown once; the log has it now."""
        self.state.warnings.append((job.title, redact.text(text).removeprefix(WARNING)))
        self.log(f"    {text}")

    def job_started(self, job: JobState) -> None:
        """Show that a job starts."""
        self._printed_at, self._printed_step = time.monotonic(), 0
        self.print(f"--- job {job.number} of {self.state.total}: {job.title}")

    def refresh(self) -> None:
        """Show the progress of the current job; call it often."""
        job = self.state.current
        if job is None:
            return
        total = job.job.config.train_iterations
        step = job.step.number if job.step else 0
        new_steps = step - self._printed_step
        is_due = new_steps != 0 and (new_steps >= PLAIN_EVERY_PART * total or step in (1, total))
        now = time.monotonic()
        if is_due or now - self._printed_at >= PLAIN_EVERY_SECONDS:
            self._printed_at, self._printed_step = now, step
            self.print(f"    {progress(job)}")

    def job_ended(self, job: JobState) -> None:
        """Show how a job ended."""
        self.print(ended(job, self.state))

    def _show(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def add_to_log(output_dir: Path, text: str) -> None:
    """Add lines to the log of a matrix whose view has ended; what it cannot take is lost."""
    path = output_dir / "logs" / "matrix.log"
    with suppress(OSError), path.open("a", encoding="utf8") as file:
        file.writelines(_dated(line) for line in redact.text(text).splitlines())
    note(path)


def _dated(line: str) -> str:
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {line}\n"


def progress(job: JobState) -> str:
    """Return step, speed, loss and remaining time of a running job."""
    step = job.step
    if step is None:
        return f"starting, {duration(job.elapsed_seconds)}"
    text = f"step {step.number}/{step.total}, {step.time}, loss {step.loss:.4f}"
    left = job.remaining_seconds
    if left is not None:
        text += f", {between(left, left)} left"
    return text


def ended(job: JobState, state: MatrixState) -> str:
    """Return how a job ended, and the times of the matrix."""
    line = f"--- job {job.number} of {state.total}: {job.state}"
    if job.state == SKIPPED:
        line += ": has an ok result of the same settings, data, code and machine; FORCE=1 runs it again"
    elif job.is_good and job.result is not None:
        speed = job.result["performance_metrics"]
        line += (
            f", {speed['avg_step_time_seconds']:.3f} s per step, {speed['tokens_per_second_per_gpu']:,.0f} "
            f"tokens/s/GPU, loss {job.result['loss_values'][-1]:.3f}, took {duration(job.elapsed_seconds)}"
        )
    else:
        line += f": {brief(job)}"
    left = state.remaining_seconds()
    # nothing is left after the last job
    if left is not None and left[1]:
        line += f"; {times(state.elapsed_seconds, left)}"
    return line


def brief(job: JobState) -> str:
    """Return the first line of the reason, and the log that has the rest."""
    # a reason may hold the last lines of a log, for which the view has no room
    first = (job.reason or "unknown reason").strip().splitlines()[0]
    first = first.removesuffix("; last lines of its log:")  # they are on the lines that are not shown
    return first + (f"; see {job.log}" if job.log else "")


def duration(seconds: float | None) -> str:
    """Return `m:ss` or `h:mm:ss`; a dash for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def between(least: float, most: float) -> str:
    """Return `about m:ss`, or `m:ss to m:ss` where the number of runs is open."""
    first, last = duration(least), duration(most)
    return f"about {first}" if first == last else f"{first} to {last}"


def times(elapsed: float | None, left: tuple[float, float] | None) -> str:
    """Return `4:12 elapsed, about 3:10 left`.

    `elapsed` is in seconds; `left` has the least and the most remaining seconds, None if they are unknown.
    """
    remaining = "remaining time unknown" if left is None else f"{between(*left)} left"
    return f"{duration(elapsed)} elapsed, {remaining}"
