"""Primus as a process: started from its own root, its output read line by line, ended with all its children."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from train.job import processes
from train.prim.arguments import Arguments, first_learning_rate, plain
from train.prim.checkpoint import unloaded
from train.prim.install import printed_variable
from utils.logs.iterations import iterations
from utils.logs.lines import IterationLine, Line
from utils.results.raw_samples import format_profiled, format_step

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""Less than the grace period that the launcher of the job gives this process."""
LAST_LINES = 8
TITLE = "AMD"


class Follower:
    """Reader of Primus's output, which it also passes on: arguments, environment, learning rates, progress.

    After each new iteration line it prints a progress line in the suite's own format, which the watchdog of the job and
    the view of the matrix read. `check` is called with the arguments once their table is complete; it returns a text
    where they are wrong, else None.
    """

    def __init__(self, check: Callable[[Arguments], str | None], total_steps: int, profiled: range = range(0)) -> None:
        """`profiled` has the numbers of the profiled steps."""
        self.arguments = Arguments()
        self.environment: dict[str, str] = {}
        """Variables that Primus's launcher prints after setting them."""
        self.learning_rates: dict[int, float] = {}
        """As printed with each iteration: the rate of the next one."""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.memory_lines: list[str] = []
        """The first line about an out-of-memory error."""
        self.unloaded: str | None = None
        """Names of the checkpoint that Megatron could not load, as it prints them."""
        self.step_ends: dict[int, float] = {}
        """`time.perf_counter` when the line of each iteration came, which Primus prints as it ends."""
        self.mismatch: str | None = None
        """Result of `check`."""
        self._check = check
        self._total_steps = total_steps
        self._profiled = profiled
        self._seconds: list[float] = []

    def take(self, line: str) -> None:
        """Read one line, with its newline."""
        print(line, end="", flush=True)
        was_complete = self.arguments.is_complete
        self.arguments.take(line)
        if self.arguments.is_complete and not was_complete:
            self.mismatch = self._check(self.arguments)
        text = plain(line)
        if variable := printed_variable(text):
            self.environment[variable[0]] = variable[1]
        if line.strip():
            self.last_lines.append(text)
        self.unloaded = self.unloaded or unloaded(line)
        if "out of memory" in line and not self.memory_lines:
            self.memory_lines.append(text)
        for seen in iterations(Line(line, Path(), 0, True)):
            self._take_step(seen)

    def learning_rate(self, step: int) -> float | None:
        """Return the rate of a step: Megatron's scheduler advances before it prints (training.py, `train`)."""
        return first_learning_rate(self.arguments.values) if step == 1 else self.learning_rates.get(step - 1)

    def _take_step(self, seen: IterationLine) -> None:
        if seen.learning_rate is not None:
            self.learning_rates[seen.number] = seen.learning_rate.value
        if seen.step_time is None or seen.number <= max(self.step_ends, default=0):
            return
        self.step_ends[seen.number] = time.perf_counter()
        seconds = seen.step_time.value
        used = [memory.gb for memory in seen.memory if "used" in memory.meaning]
        loss = seen.loss.value if seen.loss is not None else math.nan
        memory_gb = max(used, default=math.nan)
        if seen.number in self._profiled:
            print(format_profiled(TITLE, seen.number, self._total_steps, loss, memory_gb), end="", flush=True)
            return
        self._seconds.append(seconds)
        average = statistics.fmean(self._seconds[1:] or self._seconds)
        text = format_step(TITLE, seen.number, self._total_steps, seconds, average, loss, memory_gb)
        print(text, end="", flush=True)


def run(
    root: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    follower: Follower,
    stop: processes.StopRequest,
) -> int:
    """Run the command of Primus's launcher in `root` until it exits; return its exit code, negative for a signal.

    No process of it remains. It is stopped early on a stop request to this process, or when the follower finds wrong
    arguments.
    """
    processes.adopt_orphans()
    child = processes.Child(list(command), follower.take, environment, folder=root)
    processes.wait_until(
        lambda: child.has_ended() or follower.mismatch is not None, stop=stop, poll_seconds=POLL_SECONDS
    )
    return child.close(GRACE_SECONDS)
