"""Work on many parts in several processes: results in order, bounded memory, no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import get_temp_dir
from typing import Any, TypeVar

from data.encoding import server

Part = TypeVar("Part")
Result = TypeVar("Result")

PRELOAD = ("data.encoding.server", "data.encoding.worker", "tokenizers")
"""Modules that the fork server imports once for all workers."""
PARTS_AHEAD = 8
"""Parts given out per worker whose results are not yet consumed; this bounds the size of the part files."""
CALLS_AHEAD = 2
"""Calls that a worker has: the one that it works on, and the next, so that it does not wait for this process."""


class WorkerError(RuntimeError):
    """A worker process died without an error, nearly always because the kernel killed it for lack of memory."""


class RaisedInWorkerError(Exception):
    """The traceback, as text, of an error that a worker has passed on."""


def usable(workers: int, pieces: int | None = None) -> int:
    """Return at most one worker for each core that this process may use, and for each of the pieces of work."""
    return max(1, min(workers, len(os.sched_getaffinity(0)), workers if pieces is None else pieces))


def in_order(function: Callable[[Part], Result], parts: Iterable[Part], workers: int) -> Generator[Result, None, None]:
    """Yield `function(part)` for each part, in order; with one worker, in this process.

    `function` and parts are pickled. An error of a worker is raised here, that of the earliest part first. Workers are
    forked from a fork server; after `start_workers` it has imported PRELOAD, so they need not import it again.
    Raises WorkerError if a worker died. The workers end with this generator, and also if this process is killed.
    """
    if workers == 1:
        for part in parts:
            yield function(part)
        return
    run = _Run(function, parts)
    try:
        run.start(workers)
        yield from run.results()
    finally:
        run.stop()


class _Worker:
    """One process, and the calls that it has."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.calls = 0

    def send(self, message: Any) -> None:
        """Send a message; the end of the process is noticed elsewhere."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def end(self) -> None:
        """End the process, whatever it works on, and wait until it has ended."""
        if self.process.is_alive():
            self.process.terminate()
        self.process.join()
        self.connection.close()


class _Run:
    """The calls of one run: parts that are given out and results that are not taken yet."""

    def __init__(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> None:
        self._function = function
        self._workers: list[_Worker] = []
        self._parts = enumerate(parts)
        self._given = self._taken = 0
        self._results: dict[int, tuple[Exception | None, Any]] = {}

    def start(self, number: int) -> None:
        """Start the workers; each gets the function once, and later messages are so small that sending never blocks."""
        _start_server()
        for _ in range(number):
            self._workers.append(_Worker())
            self._workers[-1].send(self._function)

    def stop(self) -> None:
        """End the workers; a part that one of them works on is lost."""
        while self._workers:
            self._workers.pop().end()

    def results(self) -> Iterator[Any]:
        """Yield the results in order."""
        while True:
            self._give()
            if self._taken == self._given:
                return
            while self._taken not in self._results:
                self._collect()
                self._give()
            error, value = self._results.pop(self._taken)
            if error is not None:
                raise error from RaisedInWorkerError(value)
            self._taken += 1
            yield value

    def _give(self) -> None:
        """Give calls to the workers that have too few, one each in turn."""
        for _ in range(CALLS_AHEAD):
            for worker in self._workers:
                if worker.calls == CALLS_AHEAD or self._given == self._taken + PARTS_AHEAD * len(self._workers):
                    continue
                call = next(self._parts, None)
                if call is not None:
                    self._given += 1
                    worker.calls += 1
                    worker.send(call)

    def _collect(self) -> None:
        """Wait for results; raises WorkerError if a worker has died."""
        ready = wait([worker.connection for worker in self._workers])  # at the end of a process its end is closed
        for worker in self._workers:
            if worker.connection in ready:
                try:
                    number, failure, value = worker.connection.recv()
                except (EOFError, ConnectionResetError) as error:
                    raise WorkerError(
                        f"workers: one of {len(self._workers)} was killed, perhaps for lack of memory; "
                        "try again with fewer workers"
                    ) from error
                worker.calls -= 1
                self._results[number] = failure, value


def _serve(connection: Connection) -> None:
    """Work for the parent process until it ends this one: a function first, then numbered calls."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent was killed
        function = connection.recv()
        while True:
            number, part = connection.recv()
            outcome: tuple[Exception | None, Any]
            try:
                outcome = None, function(part)
            except Exception as error:  # noqa: BLE001 it is raised in the parent
                outcome = error, traceback.format_exc()
            connection.send((number, *outcome))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def one_thread_each() -> None:
    """Make `tokenizers` single-threaded in this process and its children; they are already parallel by process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def start_workers() -> None:
    """Start the fork server of the workers, which imports PRELOAD while this process does something else.

    A running server is not changed.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", *PRELOAD])
    os.environ[server.SOCKETS] = get_temp_dir()  # for the server only
    try:
        _start_server()
    finally:
        del os.environ[server.SOCKETS]


def _start_server() -> None:
    """Start the fork server, unless it runs. Ctrl-C is blocked in it and so, from their first moment, in its workers.

    Ctrl-C reaches the whole process group, and a worker that it ends while it starts would print a traceback. This
    process ends the work.
    """
    resource_tracker.ensure_running()  # it unblocks Ctrl-C when it starts, and the server starts it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
