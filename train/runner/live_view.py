"""The view of a running matrix on a terminal: the lines of the plain view, and live lines with bars below them.

rich draws the live lines, fits them to the terminal and honours NO_COLOR.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train.runner.state import SKIPPED, JobState, MatrixState
from train.runner.view import View, ended, progress, times
from utils import redact

WIDE = 80
"""A terminal with fewer columns has no room for bars; there the lines wrap."""
COLOURS = {"ok": "green", SKIPPED: "cyan"}


class LiveView(View):
    """View on a terminal."""

    def __init__(self, state: MatrixState, log_path: Path, console: Console | None = None) -> None:
        super().__init__(state, log_path)
        self._console = console or Console(highlight=False)
        # transient: the last live lines would stay above what is printed next
        self._live = Live(
            get_renderable=lambda: live_lines(self.state, self._console.width),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        super().__exit__(kind, error, trace)

    def refresh(self) -> None:
        """Do nothing, as rich draws the live lines four times a second."""

    def job_ended(self, job: JobState) -> None:
        """Show how a job ended, in the colour of its state."""
        line = ended(job, self.state)
        self.log(line)
        self._show(redact.text(line), COLOURS.get(job.state, "red"))

    def _show(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style))


def live_lines(state: MatrixState, width: int) -> Group:
    """Return a line for the job or the pause, one for the matrix, and one for the last warning if there is any."""
    grid = Table.grid(padding=(0, 1), expand=True)
    if width >= WIDE:
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1, min_width=6)
        grid.add_column(no_wrap=True, justify="right")

    def add(title: str, done: int, total: int, details: str) -> None:
        if width >= WIDE:
            grid.add_row(title, ProgressBar(total, done), details)
        else:
            grid.add_row(f"{title}: {details}")

    job = state.current
    # between two jobs there is a pause, or another phase
    if job is None:
        grid.add_row(state.pause or state.phase)
    else:
        add(job.title, job.step.number if job.step else 0, job.job.config.train_iterations, progress(job))
    jobs = state.done
    if state.failed:
        jobs += f", {state.failed} failed"
    done = sum(job.is_done for job in state.jobs)
    add(jobs, done, len(state.jobs), times(state.elapsed_seconds, state.remaining_seconds()))
    warnings = Text(style="yellow", no_wrap=True, overflow="ellipsis", end="")
    if state.warnings:
        warnings.append(f"warnings: {len(state.warnings)}, the last: {state.warnings[-1][1]}")
    return Group(grid, warnings)
