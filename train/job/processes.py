"""Supervision of processes: none outlives its parent, all descendants are found, and all are ended in order.

`Child` is a child process whose output is read line by line in the background.

A process group does not hold a job together, because torchrun puts each rank into a session of its own. So a process
that starts a job adopts its orphaned descendants (PR_SET_CHILD_SUBREAPER) and finds every process of the job below
itself. The kernel signals a child when its parent dies (PR_SET_PDEATHSIG), so a killed launcher takes its job along.
Linux only; see prctl(2).
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from utils import redact
from utils.settings.config import ROOT

if TYPE_CHECKING:
    import psutil  # imported on use: a plan is made before the packages are installed

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Both from <linux/prctl.h>."""
_LIBC = ctypes.CDLL(None, use_errno=True)  # now: between fork and exec nothing may be loaded
KILL_WAIT_SECONDS = 20.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_EXIT_CODE = 128
"""Plus the number of the signal, as in shells."""
TIMEOUT_EXIT_CODE = 124
"""As in timeout(1)."""
LAST_OUTPUT_SECONDS = 5.0
STEP_POLL_SECONDS = 0.05
LAUNCHER_GRACE_SECONDS = 45.0
"""Time for a launcher that was asked to stop to end its ranks, by force if needed, and to write a result."""


def how_ended(exit_code: int) -> str:
    """Return how a process ended, in words; a negative exit code means a signal, as in subprocess."""
    return f"was ended by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"


def end_with_parent(number: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Make the kernel send `number` to this process when its parent dies; send it now if `parent` is dead already.

    This holds across exec, not across fork.
    """
    _prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def tied() -> Callable[[], None]:
    """Return a `preexec_fn` for subprocess.Popen: the child gets SIGTERM when this process dies.

    Start such a child from the main thread: the kernel watches the thread that started it.
    """
    parent = os.getpid()
    return lambda: end_with_parent(signal.SIGTERM, parent)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that `descendants` finds it."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """Return all living processes below this one, without zombies."""
    import psutil

    return [process for process in psutil.Process().children(recursive=True) if _is_alive(process)]


def end_descendants(grace_seconds: float) -> None:
    """End all processes below this one: SIGTERM to all, SIGKILL to those that still run after `grace_seconds`.

    Raises TimeoutError if one survives SIGKILL, because it waits in the kernel for a broken device or network file
    system.
    """
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_WAIT_SECONDS)):
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while alive := descendants():
            for process in alive:
                if process.pid not in signalled:  # also those that were started in the meantime
                    signalled.add(process.pid)
                    send(process, number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return
    left = ", ".join(str(process.pid) for process in alive)
    raise TimeoutError(f"process {left} did not end within {KILL_WAIT_SECONDS:.0f} s of SIGKILL; look at its device")


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal to a process; do nothing if it has ended."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


class StopRequest:
    """The first signal that asked this program to stop; false until it arrives."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def exit_code(self, otherwise: int) -> int:
        """Return 128 + the number of the signal, `otherwise` without one."""
        return otherwise if self.signal is None else SIGNAL_EXIT_CODE + self.signal


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Record SIGINT, SIGTERM and SIGHUP instead of ending on them; a signal that is ignored (nohup) stays ignored."""
    request = StopRequest()

    def note(number: int, frame: object) -> None:
        if request.signal is None:
            request.signal = signal.Signals(number)

    earlier = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in earlier.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def run_step(
    command: Sequence[str | Path],
    stop: StopRequest,
    refresh: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> int:
    """Run a command with this terminal's output; return its exit code, or 128 + the signal that asked to stop.

    `refresh` is called every STEP_POLL_SECONDS; `stdout` is that of subprocess.Popen. A request to stop ends all
    processes below this one.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, preexec_fn=tied()
    )
    wait_until(lambda: process.poll() is not None, stop=stop, refresh=refresh)
    if stop:
        end_descendants(LAUNCHER_GRACE_SECONDS)
    return stop.exit_code(otherwise=process.wait())


def wait_until(
    is_true: Callable[[], bool],
    seconds: float = math.inf,
    stop: object = None,
    poll_seconds: float = STEP_POLL_SECONDS,
    refresh: Callable[[], object] = lambda: None,
) -> bool:
    """Wait until `is_true` and return True; return False after `seconds` or a request to stop.

    `refresh` is called every `poll_seconds` meanwhile.
    """
    deadline = time.monotonic() + seconds
    while not is_true():
        if stop or time.monotonic() > deadline:
            return False
        refresh()
        time.sleep(poll_seconds)
    return True


def _is_alive(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


class Child:
    """A running command that ends with this process, in a process group of its own; each line goes to `on_line`.

    Start it from the main thread. `on_line` is called in another thread, with the newline and without secrets, and must
    not raise.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        """Start the command in `folder`."""
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=tied(),
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=_read, args=(self.process.stdout, on_line), daemon=True)
        self._reader.start()

    def has_ended(self) -> bool:
        """True if the command itself has ended; processes that it started may still run."""
        return self.process.poll() is not None

    def close(self, grace_seconds: float) -> int:
        """End all processes below this one, read the last output, and return the exit code of the command."""
        end_descendants(grace_seconds)
        exit_code = self.process.wait()
        # with a limit: a process that left the tree may hold the pipe open
        self._reader.join(LAST_OUTPUT_SECONDS)
        return exit_code


def _read(stream: IO[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        on_line(redact.text(line))
