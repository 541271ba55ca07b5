"""Work on many parts in several processes: results in order, bounded memory, no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import get_temp_dir
from typing import TypeVar

from data.encoding import server

Part = TypeVar("Part")
Result = TypeVar("Result")

PRELOAD = ("data.encoding.server", "data.encoding.worker", "tokenizers")
"""Modules that the fork server imports once for all workers."""
PARTS_AHEAD = 8
"""Parts given out per worker whose results are not yet consumed; this bounds the size of the part files."""


class WorkerError(RuntimeError):
    """A worker process died without an error, nearly always because the kernel killed it for lack of memory."""


def usable(workers: int, pieces: int | None = None) -> int:
    """Return at most one worker for each core that this process may use, and for each of the pieces of work."""
    most = len(os.sched_getaffinity(0))
    if pieces is not None:
        most = min(most, pieces)
    return max(1, min(workers, most))


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
    _start_server()
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare_worker)
    remaining = iter(parts)
    results: deque[Future[Result]] = deque()
    try:
        while True:
            # not all parts at once: the files of those that are not joined yet would fill the disk
            for part in islice(remaining, PARTS_AHEAD * workers - len(results)):
                results.append(pool.submit(function, part))
            if not results:
                return
            yield results.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerError(
            f"workers: one of {workers} was killed, perhaps for lack of memory; try again with fewer workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Make this process end by SIGTERM, and with its parent: a pool would wait for a killed parent forever."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


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
    # a variable for the server only
    os.environ[server.SOCKETS] = get_temp_dir()
    try:
        _start_server()
    finally:
        del os.environ[server.SOCKETS]


def _start_server() -> None:
    """Start the fork server, unless it runs. Ctrl-C is blocked in it and so, from their first moment, in its workers.

    Ctrl-C reaches the whole process group, and a worker that it ends while it starts would print a traceback. This
    process ends the work.
    """
    # the server would start the resource tracker, which unblocks Ctrl-C when it starts
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
