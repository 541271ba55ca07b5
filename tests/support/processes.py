"""Waiting with a limit: for processes that are not children of the tests to end, and for code that must not hang."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psutil

PATIENCE_SECONDS = 600


def wait_until_gone(processes: Iterable[psutil.Process]) -> None:
    """Wait until processes have ended; one that its parent has not asked for yet is listed, but has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [process for process in processes if _is_alive(process)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def below(pid: int) -> list[psutil.Process]:
    """Return the processes below one, none if it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@contextmanager
def no_hang() -> Iterator[None]:
    """Raise an error in a block that does not end; it guards against waiting forever and measures nothing."""

    def stop(*_: object) -> None:
        raise AssertionError(f"nothing ended after {PATIENCE_SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
