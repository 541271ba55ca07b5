"""The views of a running matrix for people.

On a terminal they show a table of finished jobs with two live lines below it, elsewhere plain lines. Both write the
plain lines into the log of the matrix. rich draws the live part and honours NO_COLOR.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.runner.state import SKIPPED, JobState, MatrixState
from utils import redact

PLAIN_EVERY_SECONDS = 60.0
PLAIN_EVERY_PART = 0.1
"""Without a terminal, a job prints a line at every tenth of its steps and at least one a minute."""
COLUMNS = f"{'job':>7}  {'':18}  {'status':8} {'step s':>8} {'tokens/s/GPU':>13} {'loss':>7} {'took':>7}"
COLOURS = {"ok": "green", SKIPPED: "cyan"}


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
        self._printed_at = 0.0
        self._printed_step = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def print(self, text: str) -> None:
        """Print a line and write it into the log, without secrets."""
        text = redact.text(text)
        self._log_line(text)
        self._show(text)

    def job_started(self, job: JobState) -> None:
        """Show that a job starts."""
        self._printed_at, self._printed_step = time.monotonic(), 0
        self.print(f"--- job {job.number} of {self.state.total}: {job.title}")

    def refresh(self) -> None:
        """Show the progress of the current job; call it often."""
        job = self.state.current
        if job is None:
            return
        now, number, total = time.monotonic(), job.step.number if job.step else 0, job.job.config.train_iterations
        is_tenth = number - self._printed_step >= PLAIN_EVERY_PART * total or number in (1, total)
        if (is_tenth and number != self._printed_step) or now - self._printed_at >= PLAIN_EVERY_SECONDS:
            self._printed_at, self._printed_step = now, number
            self.print(f"    {_where(job)}")

    def job_ended(self, job: JobState) -> None:
        """Show how a job ended."""
        self.print(_ended(job, self.state))

    def _show(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _log_line(self, text: str) -> None:
        if self._log is not None:
            try:
                self._log.write(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}\n")
                self._log.flush()
            except OSError as error:  # a full disk must not end the matrix
                self._log = None
                self._show(f"warning: the log of the matrix ends here: {error}")


class LiveView(View):
    """View on a terminal: a table of finished jobs and two live lines."""

    def __init__(self, state: MatrixState, log_path: Path) -> None:
        super().__init__(state, log_path)
        self._console = Console(highlight=False)
        self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=4, transient=True)
        self._has_header = False

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        super().__exit__(kind, error, trace)

    def job_started(self, job: JobState) -> None:
        """Write it into the log only: the live lines show the job."""
        self._log_line(f"--- job {job.number} of {self.state.total}: {job.title}")

    def refresh(self) -> None:
        """Do nothing: rich draws four times a second."""

    def job_ended(self, job: JobState) -> None:
        """Add the job's row to the table."""
        if not self._has_header:
            self._console.print(COLUMNS, style="bold")
            self._has_header = True
        self._log_line(_ended(job, self.state))
        self._console.print(_row(job, len(self.state.jobs)))
        if not job.is_good:
            self._console.print(Text(f"         {_brief(job)}", style="red"), overflow="fold")

    def _show(self, text: str) -> None:
        self._console.print(text, markup=False)

    def _draw(self) -> Group:
        state, job = self.state, self.state.current
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1, min_width=6)
        grid.add_column(no_wrap=True, justify="right")
        if job is not None:
            steps = job.step.number if job.step else 0
            total = job.job.config.train_iterations
            grid.add_row(f"{job.number:>3} {job.title}", ProgressBar(total, steps), _beside_bar(job))
        done = sum(one.is_done for one in state.jobs)
        failed = Text(f", {state.failed} failed", style="red") if state.failed else Text()
        left = state.remaining_seconds()
        counts = Text(f"    {state.done}") + failed
        remaining = "remaining time unknown" if left is None else f"{between(*left)} left"
        times = f"{duration(state.elapsed_seconds)} elapsed, {remaining}"
        grid.add_row(counts, ProgressBar(len(state.jobs), done), times)
        return Group(*([] if job else [Text(f"    {state.phase}")]), grid)


def view_of(state: MatrixState, output_dir: Path) -> View:
    """Return the view that fits the standard output."""
    kind = LiveView if sys.stdout.isatty() else View
    return kind(state, output_dir / "logs" / "matrix.log")


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


def _beside_bar(job: JobState) -> str:
    if job.step is None:
        return f"starting, {duration(job.elapsed_seconds)}"
    step = job.step
    return f"{step.number}/{step.total} {step.seconds:.3f} s loss {step.loss:.3f}{_remaining(job)}"


def _remaining(job: JobState) -> str:
    left = job.remaining_seconds
    return "" if left is None else f", {duration(left)} left"


def _where(job: JobState) -> str:
    if job.step is None:
        return f"{job.title}: starting, {duration(job.elapsed_seconds)}"
    step = job.step
    return (
        f"step {step.number}/{step.total}, {step.seconds:.3f} s, loss {step.loss:.4f}, {step.memory_gb:.1f} GB"
        f"{_remaining(job)}"
    )


def _figures(job: JobState) -> tuple[str, str, str]:
    """Return step time, throughput and last loss of an ok result."""
    if job.result is None or not job.is_good:
        return "", "", ""
    speed = job.result["performance_metrics"]
    return (
        f"{speed['avg_step_time_seconds']:.3f}",
        f"{speed['tokens_per_second_per_gpu']:,.0f}",
        f"{job.result['loss_values'][-1]:.3f}",
    )


def _row(job: JobState, total: int) -> Text:
    seconds, throughput, loss = _figures(job)
    row = Text(f"{job.number:>3}/{total:<3}  {job.title:18}  ")
    row.append(f"{job.state:8}", style=COLOURS.get(job.state, "red"))
    took = "-" if job.state == SKIPPED else duration(job.elapsed_seconds)
    return row.append(f" {seconds:>8} {throughput:>13} {loss:>7} {took:>7}")


def _ended(job: JobState, state: MatrixState) -> str:
    line = f"--- job {job.number} of {state.total}: {job.state}"
    seconds, throughput, loss = _figures(job)
    if job.state == SKIPPED:
        line += ": has an ok result of the same settings, data, code and machine; FORCE=1 runs it again"
    elif job.is_good:
        line += f", {seconds} s per step, {throughput} tokens/s/GPU, loss {loss}, took {duration(job.elapsed_seconds)}"
    else:
        line += f": {_brief(job)}"
    left = state.remaining_seconds()
    return line + (f"; {between(*left)} left" if left and left[1] else "")


def _brief(job: JobState) -> str:
    """Return the first line of the reason, and the log that has the rest."""
    first = (job.reason or "unknown reason").strip().splitlines()[0]
    first = first.removesuffix("; last lines of its log:")  # they are on the lines that are not shown
    return first + (f"; see {job.log}" if job.log else "")
