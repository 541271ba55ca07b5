"""The view of a running matrix on a terminal: a table of finished jobs, and live lines below it.

rich draws the live lines and honours NO_COLOR. A terminal of fewer than WIDE columns gets short lines without bars.
A terminal that becomes narrower may wrap the lines that it shows; what is left of the live ones then stays above the
next ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.runner.state import SKIPPED, JobState, MatrixState
from train.runner.view import View, between, brief, duration, ended, figures, remaining, times

WIDE = 80
"""Columns of the table of finished jobs, and of a line with a bar."""
COLUMNS = f"{'job':>7}  {'':18}  {'status':8} {'step s':>8} {'tokens/s/GPU':>13} {'loss':>7} {'took':>7}"
COLOURS = {"ok": "green", SKIPPED: "cyan"}


class LiveView(View):
    """View on a terminal: a table of finished jobs and live lines."""

    def __init__(self, state: MatrixState, log_path: Path, console: Console | None = None) -> None:
        super().__init__(state, log_path)
        of_size = ("COLUMNS", "LINES")  # set ones stay as they were when the size of the terminal changes
        environ = {name: value for name, value in os.environ.items() if name not in of_size}
        self._console = console or Console(highlight=False, _environ=environ)
        self._live = Live(
            get_renderable=lambda: Group(*live_lines(self.state, *self._console.size)),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )
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
        self.log(f"--- job {job.number} of {self.state.total}: {job.title}")

    def refresh(self) -> None:
        """Do nothing: rich draws the live lines four times a second."""

    def job_ended(self, job: JobState) -> None:
        """Add the job's row to the table."""
        self.log(ended(job, self.state))
        is_wide = self._console.size.width >= WIDE
        if is_wide and not self._has_header:
            self._print(Text(COLUMNS, style="bold"))
            self._has_header = True
        self._print((row if is_wide else short_row)(job, len(self.state.jobs)))
        if not job.is_good:
            self._print(Text(f"{' ' * (9 if is_wide else 1)}{brief(job)}", style="red"))

    def _show(self, text: str) -> None:
        self._print(Text(text))

    def _print(self, line: Text) -> None:
        self._console.print(line, overflow="fold")


def live_lines(state: MatrixState, width: int, height: int) -> list[Table | Text]:
    """Return the live lines for a terminal of this size, fewer than its lines."""
    lines = _wide_lines(state) if width >= WIDE else _short_lines(state)
    if state.warnings:
        count = len(state.warnings)
        told = f"{count} warning{'' if count == 1 else 's'}, the last: {state.warnings[-1][1]}"
        lines.append(Text(f"    {told}", style="yellow"))
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
            line.truncate(width, overflow="ellipsis")
    return lines[: max(1, height - 1)]


def _wide_lines(state: MatrixState) -> list[Table | Text]:
    job = state.current
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
    counts = Text(f"    {state.done}") + failed
    spent = times(state.elapsed_seconds, state.remaining_seconds())
    grid.add_row(counts, ProgressBar(len(state.jobs), done), spent)
    return [*([] if job else [Text(f"    {state.pause or state.phase}")]), grid]


def _short_lines(state: MatrixState) -> list[Table | Text]:
    """Return lines whose beginnings tell the most: the terminal cuts their ends."""
    job, left = state.current, state.remaining_seconds()
    failed = f", {state.failed} failed" if state.failed else ""
    first = state.pause or state.phase
    if job is not None:
        first = f"{job.step.number}/{job.step.total} {job.title}" if job.step else f"starting {job.title}"
    known = "" if left is None else f"{between(*left)} left, "
    return [Text(first), Text(f"{known}{state.done}{failed}"), Text(f"{duration(state.elapsed_seconds)} elapsed")]


def _beside_bar(job: JobState) -> str:
    if job.step is None:
        return f"starting, {duration(job.elapsed_seconds)}"
    step = job.step
    return f"{step.number}/{step.total} {step.time} loss {step.loss:.3f}{remaining(job)}"


def row(job: JobState, total: int) -> Text:
    """Return the row of a job in the table."""
    seconds, throughput, loss = figures(job)
    line = Text(f"{job.number:>3}/{total:<3}  {job.title:18}  ")
    line.append(f"{job.state:8}", style=COLOURS.get(job.state, "red"))
    took = "-" if job.state == SKIPPED else duration(job.elapsed_seconds)
    return line.append(f" {seconds:>8} {throughput:>13} {loss:>7} {took:>7}")


def short_row(job: JobState, total: int) -> Text:
    """Return the row of a job on a narrow terminal."""
    seconds, throughput, _ = figures(job)
    line = Text(f"{job.number}/{total} ")
    line.append(job.state, style=COLOURS.get(job.state, "red"))
    return line.append(f" {job.title}" + (f", {seconds} s, {throughput} tokens/s/GPU" if seconds else ""))
