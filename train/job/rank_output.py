"""The output of a job: kept in the log, shown, and read for finished steps and torchrun's report of failed ranks."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import TextIO

from train.job.job import disk_reason
from utils.own_files import note
from utils.results.raw_samples import PREFIX, Step, parse_step

LAST_LINES = 12
_FAILED_RANK = re.compile(r"^\s*rank\s*: (?P<rank>\d+) ")
_FAILED_EXIT = re.compile(r"^\s*exitcode\s*: (?P<code>-?\d+) ")
_REPORT = re.compile(r"[EW]\d{4} .*(failed \(exitcode|Sending process|Unable to shutdown)")
"""Beginning of torchrun's report of a failed rank; the output of the ranks comes before it."""
_FORCED = "forcefully exiting via"
"""torchrun prints this when it ends a rank by SIGKILL that did not end on SIGTERM."""


def progress(step: Step | None) -> str:
    """Return how far a job came, in words."""
    return f"after step {step.number} of {step.total}" if step else "before the first step was finished"


class OutputReader:
    """Reader of a job's output: the last step, the last lines without one, and torchrun's report of failed ranks."""

    def __init__(
        self, last_lines: int = LAST_LINES, on_step: Callable[[Step, str], None] = lambda step, line: None
    ) -> None:
        """`on_step` is called with each finished step and its line."""
        self.last_lines: deque[str] = deque(maxlen=last_lines)
        self.last_step: Step | None = None
        self.last_step_at: float | None = None
        """time.monotonic() when its line came."""
        self.signals: dict[int, Signals] = {}
        """Signal that ended a rank, by rank, without those that torchrun sent itself."""
        self._on_step = on_step
        self._failed_rank: int | None = None
        self._is_report = False
        self._is_forced = False

    def take(self, line: str) -> None:
        """Read one line, with its newline."""
        step = parse_step(line)
        if step is not None:
            self.last_step, self.last_step_at = step, time.monotonic()
            self._on_step(step, line)
        elif line.strip() and not line.startswith(PREFIX):
            self._take_text(line.rstrip())

    def _take_text(self, text: str) -> None:
        """Keep a line that reports no step and holds no raw samples, or read it if it is of torchrun's report."""
        self._is_report = self._is_report or _REPORT.match(text) is not None
        if self._is_report:
            self._read_report(text)
        else:
            self.last_lines.append(text)

    def _read_report(self, line: str) -> None:
        self._is_forced = self._is_forced or _FORCED in line
        rank, code = _FAILED_RANK.match(line), _FAILED_EXIT.match(line)
        if rank is not None:
            self._failed_rank = int(rank["rank"])
        elif code is not None and self._failed_rank is not None:
            number = -int(code["code"])
            # torchrun ends the other ranks after the first failure; their signals explain nothing
            of_torchrun = (Signals.SIGTERM, Signals.SIGKILL) if self._is_forced else (Signals.SIGTERM,)
            if number > 0 and number not in of_torchrun:
                self.signals[self._failed_rank] = Signals(number)


class RankOutput(OutputReader):
    """Output of the ranks of this node: read, kept in the log, and shown on the terminal without raw samples."""

    def __init__(self, log_path: Path) -> None:
        super().__init__()
        self._path = log_path
        self.log_error: str | None = None
        self._log: TextIO | None = log_path.open("w", encoding="utf8")
        note(log_path, grows=True)
        self._terminal: TextIO | None = sys.stdout

    def take(self, line: str) -> None:
        """Read, keep and show one line, with its newline."""
        self._keep(line)
        if not line.startswith(PREFIX):
            self.show(line)
        super().take(line)

    def close(self) -> None:
        """Close the log and check that it is still where it was opened."""
        if self._log is not None:
            if not self._is_in_place(self._log):
                self.log_error = f"{self._path} was deleted, moved or replaced while the job ran"
            self._log.close()
            self._log = None

    def _is_in_place(self, log: TextIO) -> bool:
        try:
            return os.path.samestat(os.fstat(log.fileno()), self._path.stat())
        except OSError:
            return False

    def _keep(self, line: str) -> None:
        if self._log is not None:
            try:  # a full disk must not end the job
                self._log.write(line)
                self._log.flush()
            except OSError as error:
                self.log_error, self._log = disk_reason(error, [self._path.parent]) or str(error), None

    def show(self, line: str) -> None:
        """Print a line."""
        if self._terminal is not None:
            try:  # a closed terminal must not end the job
                self._terminal.write(line)
                self._terminal.flush()
            except OSError:
                self._terminal = None


class RemoteLog(OutputReader):
    """The log of a launcher on another node, read as it grows.

    A network file system shows new lines some seconds late, which is far below the limits for a step.
    """

    def __init__(self, log_path: Path, on_step: Callable[[Step, str], None]) -> None:
        super().__init__(on_step=on_step)
        self._path = log_path
        self._place = 0
        self._rest = b""

    def read(self) -> None:
        """Read the whole lines that were added since the last call."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._place)
                new = log.read()
        except OSError:
            return  # not there yet, or not visible at the moment
        self._place += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self.take(line.decode(errors="replace") + "\n")
