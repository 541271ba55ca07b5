"""What the ranks of a job print: kept, shown, and read for steps and for torchrun's own report of who was killed."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import TextIO

from utils.results.raw_samples import is_raw
from utils.results.step_line import Step, parse_step

LAST_LINES = 12
_FAILED_RANK = re.compile(r"^\s*rank\s*: (?P<rank>\d+) ")
_FAILED_EXIT = re.compile(r"^\s*exitcode\s*: (?P<code>-?\d+) ")
_REPORT = re.compile(r"[EW]\d{4} .*(failed \(exitcode|Sending process|Unable to shutdown)")
"""Where torchrun's own report of a failed rank begins; what the ranks said stands before it."""
_FORCED = "forcefully exiting via"
"""torchrun says so when it ends by SIGKILL a rank that did not heed SIGTERM."""


class Said:
    """What the ranks of a node print, read for steps and for torchrun's own report."""

    def __init__(self) -> None:
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.last_step: Step | None = None
        self.last_step_at: float | None = None
        """time.monotonic() of the last step's line."""
        self.signals: dict[int, Signals] = {}
        self._failed_rank: int | None = None
        self._is_report = False
        self._is_forced = False

    def take(self, line: str) -> None:
        """Take one line, with its newline."""
        step = parse_step(line)
        if step is not None:
            self.last_step, self.last_step_at = step, time.monotonic()
        elif line.strip() and not is_raw(line):
            self._is_report = self._is_report or _REPORT.match(line) is not None
            if self._is_report:
                self._read_report(line)
            else:
                self.last_lines.append(line.rstrip())

    def _read_report(self, line: str) -> None:
        self._is_forced = self._is_forced or _FORCED in line
        if match := _FAILED_RANK.match(line):
            self._failed_rank = int(match["rank"])
        elif (match := _FAILED_EXIT.match(line)) and self._failed_rank is not None:
            number = -int(match["code"])
            torchrun_did = number == Signals.SIGTERM or (number == Signals.SIGKILL and self._is_forced)
            if number > 0 and not torchrun_did:
                self.signals[self._failed_rank] = Signals(number)


class Output(Said):
    """Everything that the ranks of this node print: read, and kept in the log and on the terminal."""

    def __init__(self, log_path: Path) -> None:
        super().__init__()
        self.log_error: str | None = None
        self._log: TextIO | None = log_path.open("w", encoding="utf8")
        self._terminal: TextIO | None = sys.stdout

    def take(self, line: str) -> None:
        """Take one line, with its newline."""
        self._keep(line)
        if not is_raw(line):
            self.show(line)
        super().take(line)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _keep(self, line: str) -> None:
        """A full disk must not end the job that is being watched."""
        if self._log is not None:
            try:
                self._log.write(line)
                self._log.flush()
            except OSError as error:
                self.log_error, self._log = str(error), None

    def show(self, line: str) -> None:
        """Print a line; a closed terminal must not end the job that is being watched."""
        if self._terminal is not None:
            try:
                self._terminal.write(line)
                self._terminal.flush()
            except OSError:
                self._terminal = None


class Elsewhere(Said):
    """What another node's launcher has put into its log, as far as it shows here.

    A network file system shows it late, some seconds as a rule, which no limit of a step comes near.
    """

    def __init__(self, log_path: Path, show: Callable[[str], None], note: Callable[[Step], None] | None = None) -> None:
        """`show` is given the lines that tell of steps, `note` the steps."""
        super().__init__()
        self._path = log_path
        self._show = show
        self._note = note
        self._place = 0
        self._rest = b""

    def read(self) -> None:
        """Take the whole lines that have come since the last time."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._place)
                new = log.read()
        except OSError:
            return  # not there yet, or not to be seen at the moment
        self._place += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace") + "\n"
            self.take(text)
            if (step := parse_step(text)) is not None:
                self._show(text)
                if self._note is not None:
                    self._note(step)
